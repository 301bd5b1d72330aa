"""Measures what `az aks flex-node list` adds to the start of az, with a thousand nodes; the last line is JSON.

Each command is the real az in a new process, with the lab's Azure on loopback. They alternate, so that other load of
the machine affects all equally. `az aks show --help` is the start: az loads it for every command below `az aks`, with
or without an extension, and sends no request. `az account show` loads the least.
"""

from __future__ import annotations

import resource
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from bench.figures import medians, print_result
from bench.options import Option, parse
from tests.az_extension.harness import running_site

if TYPE_CHECKING:
    from tests.az_extension.harness import Site
    from tests.azure_cli import Az

ON = ("--resource-group", "edge", "--cluster-name", "plant", "--output", "tsv")
COMMANDS = {
    "account_show": ("account", "show", "--output", "tsv"),
    "start": ("aks", "show", "--help"),
    "list": ("aks", "flex-node", "list", *ON),
}
BODY = {"properties": {"nodeConfig": {"labels": {"site": "north", "rack": "7"}, "maxPods": 50}}}


def fill(site: Site, nodes: int) -> None:
    ready = {"conditions": [{"type": "Ready", "status": "True"}], "kubeletVersion": "v1.34.4"}
    for number in range(nodes):
        site.admin.put(f"edge-{number}", BODY)
        site.admin.ask("POST", site.admin.path(f"edge-{number}", "reportStatus"), ready)


def taken(az: Az, command: tuple[str, ...]) -> tuple[float, float]:
    """Returns the elapsed seconds and the CPU seconds of a command."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    az.run(*command)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.perf_counter() - began, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measured(az: Az, rounds: int) -> dict[str, float]:
    for command in COMMANDS.values():  # fills the cache that az keeps for its next start
        az.run(*command)
    found: list[dict[str, float]] = []
    for _ in range(rounds):
        found.append({})
        for name, command in COMMANDS.items():
            found[-1][name], found[-1][f"{name}_cpu"] = taken(az, command)
    return medians(found, 3)


def main() -> None:
    options = parse("az_extension", __doc__, Option("--nodes", 1000), Option("--rounds", 15))
    with tempfile.TemporaryDirectory() as directory, running_site(Path(directory)) as site:
        (Path(directory) / "owner").mkdir()
        az = site.signed_in("owner", Path(directory) / "owner")
        fill(site, options.nodes)
        listed = len(az.run(*COMMANDS["list"]).out.splitlines())
        found = measured(az, options.rounds)
    found |= {f"added{kind}": round(found[f"list{kind}"] - found[f"start{kind}"], 3) for kind in ("", "_cpu")}
    print_result("az_extension", nodes=listed, rounds=options.rounds, **found)


if __name__ == "__main__":
    main()
