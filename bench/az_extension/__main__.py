"""What `az aks flex-node list` adds to az's own start, with a thousand nodes; the last line is JSON.

Each command is the real az in a process of its own, against the lab's Azure on loopback; they take turns, so that
what else the machine does is the same for all. `az aks show --help` is the start: what az reads for any command below
`az aks`, whether or not there is an extension, and nobody is asked. `az account show` reads least of all.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

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


def arguments() -> argparse.Namespace:
    words = argparse.ArgumentParser(prog="bench.az_extension", description=__doc__)
    words.add_argument("--nodes", type=int, default=1000)
    words.add_argument("--rounds", type=int, default=15)
    return words.parse_args()


def fill(site: Site, nodes: int) -> None:
    ready = {"conditions": [{"type": "Ready", "status": "True"}], "kubeletVersion": "v1.34.4"}
    for number in range(nodes):
        site.admin.put(f"edge-{number}", BODY)
        site.admin.ask("POST", site.admin.path(f"edge-{number}", "reportStatus"), ready)


def taken(az: Az, words: tuple[str, ...]) -> tuple[float, float]:
    """Seconds, and seconds of processor time."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    az.run(*words)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.perf_counter() - began, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measured(az: Az, rounds: int) -> dict[str, float]:
    for words in COMMANDS.values():  # what az keeps for its next start is there then
        az.run(*words)
    found: dict[str, list[float]] = {}
    for _ in range(rounds):
        for name, words in COMMANDS.items():
            wall, cpu = taken(az, words)
            found.setdefault(name, []).append(wall)
            found.setdefault(f"{name}_cpu", []).append(cpu)
    return {name: round(statistics.median(each), 3) for name, each in found.items()}


def main() -> None:
    told = arguments()
    with tempfile.TemporaryDirectory() as room, running_site(Path(room)) as site:
        (Path(room) / "owner").mkdir()
        az = site.signed_in("owner", Path(room) / "owner")
        fill(site, told.nodes)
        listed = len(az.run(*COMMANDS["list"]).out.splitlines())
        found = measured(az, told.rounds)
    found |= {f"added{kind}": round(found[f"list{kind}"] - found[f"start{kind}"], 3) for kind in ("", "_cpu")}
    print(json.dumps({"bench": "az_extension", "nodes": listed, "rounds": told.rounds, **found}))


if __name__ == "__main__":
    main()
