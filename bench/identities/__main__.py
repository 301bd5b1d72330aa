"""Measures the daemon with each kind of identity, and the kubelet's token; the last line is JSON.

Four machines join, one with each identity. Memory and CPU time of each idle daemon are measured. Then the CPU time of
repeated requests for the kubelet's token is measured, with a cached and with a new token.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.agent.__main__ import measure_idle
from bench.figures import print_result
from bench.lab import added_machine, running_lab
from bench.options import LAB, Option, parse
from tests.join_methods import CERTIFICATE, EXEC, by_arc, by_managed_identity
from tests.managed_node import ManagedLabNode

if TYPE_CHECKING:
    import argparse

    from aks_flex_lab.lab import Lab
    from aks_flex_lab.machines.machine import EdgeMachine

KUBELET = "/var/lib/kubelet"
OPTIONS = (
    Option("--seconds", 60.0, "duration of each idle measurement"),
    Option("--tokens", 20, "number of tokens of each kind"),
    LAB,
)
INSIDE = Path(__file__).with_name("inside.py")


def token_cost(machine: EdgeMachine, times: int) -> dict[str, float]:
    """Returns the CPU milliseconds of one call of the script, with a cached token and with a new one each time."""
    found = {}
    for how in ("anew", "kept"):
        output = machine.run("python3", "-", KUBELET, str(times), how, input=INSIDE.read_text(), timeout=300).out
        found[how] = round(1000 * float(output), 1)
    return found


def measured(lab: Lab, name: str, options: argparse.Namespace, auth: dict[str, Any] | None) -> dict[str, Any]:
    with added_machine(lab, f"as-{name}") as machine:
        node = ManagedLabNode.make(lab, machine, **({"kubernetesAuth": auth} if auth else {}))
        arguments_of_agent: list[str] = []
        if name == "managed-identity":
            by_managed_identity(node)
        elif name == "arc":
            arguments_of_agent = by_arc(node)
        try:
            node.join(*arguments_of_agent)
            node.wait_until_ready()
            found: dict[str, Any] = measure_idle(machine, options.seconds)
            if auth:
                found["token_cpu_ms"] = token_cost(machine, options.tokens)
            print(f"{name}: {found}", flush=True)
            return found
        finally:
            node.delete()


def main() -> None:
    options = parse("identities", __doc__, *OPTIONS)
    methods = {"token": None, "principal": EXEC, "certificate": CERTIFICATE, "managed-identity": EXEC, "arc": EXEC}
    with running_lab(options.lab) as lab:
        found = {name: measured(lab, name, options, auth) for name, auth in methods.items()}
    print_result("identities", **found)


if __name__ == "__main__":
    main()
