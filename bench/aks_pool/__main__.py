"""Compares nodes of an AKS flex node pool with nodes of the self-hosted provider; the last line is one JSON object.

In each round, one machine joins through a pool (`agent --aks-pool`) and one with a config URL, on the same lab and
alternately first. The other steps are also done with both, one after another:

* join: from the start of the command until the Node is Ready.
* upgrade: until the Node is Ready with the new kubelet, and the agent has stored the configuration, which it does
  after its health check. It starts when AKS has deleted the Node of the pool, and with the PUT to the provider.
* memory: of the daemon, when both nodes are idle, and after the upgrade. In the last round they stay idle for
  `--seconds`, in which the requests to Azure Resource Manager are counted.

A ratio is pool divided by provider.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from aks_flex_lab.machines.base_system import DebianRelease
from bench.aks_pool.idle import daemon_memory, requests_a_minute
from bench.aks_pool.measured_nodes import MeasuredPoolNode, ProviderNode, join, upgrade
from bench.figures import medians, print_result, spreads
from bench.lab import added_machine, running_lab
from bench.options import LAB, SYSTEM, Option, parse

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aks_flex_lab.lab import Lab
    from bench.aks_pool.measured_nodes import MeasuredNode

SETTLED = 15.0  # seconds after which a node is idle
OPTIONS = (
    Option("--rounds", 4, "number of machines of each kind; an even number is fair"),
    Option("--seconds", 300.0, "duration of the idle measurement"),
    LAB,
    SYSTEM,
)
RATIOS = ("join", "join_returns", "upgrade", "upgrade_ready", "rss_mib", "pss_mib", "upgraded_rss_mib")


def measure_round(lab: Lab, number: int, system: DebianRelease, idle_seconds: float) -> dict[str, dict[str, Any]]:
    """Measures both kinds of nodes; returns the figures of each side."""
    with ExitStack() as stack:
        machines = {
            side: stack.enter_context(added_machine(lab, f"{side}-{number}", system)) for side in ("pool", "provider")
        }
        nodes: dict[str, MeasuredNode] = {}
        for side, machine in machines.items():
            is_pool = side == "pool"
            nodes[side] = (
                MeasuredPoolNode.make(lab, machine, f"bench{number}") if is_pool else ProviderNode.make(lab, machine)
            )
            stack.callback(nodes[side].remove)
        order = sorted(nodes, reverse=number % 2 == 0)
        found: dict[str, dict[str, Any]] = {}
        for side in order:
            found[side] = join(lab, nodes[side])
            time.sleep(SETTLED)  # the start of this daemon must not disturb the join of the other node
        if idle_seconds:
            for side, counts in requests_a_minute(lab, machines, idle_seconds).items():
                found[side]["requests_a_minute"] = counts
        for side in order:
            found[side] |= daemon_memory(machines[side])
        for side in order:
            found[side] |= upgrade(lab, nodes[side])
            time.sleep(SETTLED)
            found[side] |= {f"upgraded_{key}": value for key, value in daemon_memory(machines[side]).items()}
    return found


def summary(rounds: Sequence[dict[str, dict[str, Any]]]) -> dict[str, Any]:
    """Returns the medians of both sides, and the median and the range of the ratios of each round."""
    sides = {
        side: medians(
            [{key: value for key, value in one[side].items() if isinstance(value, (int, float))} for one in rounds]
        )
        for side in ("pool", "provider")
    }
    ratios = spreads([{key: one["pool"][key] / one["provider"][key] for key in RATIOS} for one in rounds], 3)
    idle = {side: rounds[-1][side]["requests_a_minute"] for side in sides}
    return {"median": sides, "ratio": ratios, "requests_a_minute": idle}


def shown(figures: dict[str, Any]) -> str:
    return "  ".join(
        f"{key} {value}" if isinstance(value, dict) else f"{key} {value:.2f}" for key, value in figures.items()
    )


def main() -> None:
    options = parse("aks_pool", __doc__, *OPTIONS)
    rounds: list[dict[str, dict[str, Any]]] = []
    with running_lab(options.lab) as lab:
        for number in range(1, options.rounds + 1):
            idle = options.seconds if number == options.rounds else 0.0
            rounds.append(measure_round(lab, number, DebianRelease(options.os), idle))
            for side in ("pool", "provider"):
                print(f"round {number}, {side}:  {shown(rounds[-1][side])}", flush=True)
    print_result("aks_pool", rounds=len(rounds), os=options.os, **summary(rounds))


if __name__ == "__main__":
    main()
