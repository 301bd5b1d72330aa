"""Joins new machines with the baseline script and prints the time of each phase; the last line is one JSON object."""

from __future__ import annotations

import argparse
import json
import statistics
from typing import TYPE_CHECKING

from aks_flex_lab.baseline.join import BaselineSettings, JoinTimings, join
from aks_flex_lab.cli.console import TerminalProgress
from aks_flex_lab.machines.base_system import DebianRelease
from aks_flex_lab.versions import NodeVersions
from bench.lab import running_lab

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aks_flex_lab.lab import Lab


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench.baseline", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="number of machines, one after another")
    parser.add_argument(
        "--lab", default="bench", help="name of the lab; started, and removed at the end, unless it is running"
    )
    parser.add_argument(
        "--os", choices=[system.value for system in DebianRelease], default=DebianRelease.BOOKWORM.value
    )
    parser.add_argument("--containerd", default=NodeVersions.containerd)
    parser.add_argument("--kubernetes", default=NodeVersions.kubernetes)
    parser.add_argument("--no-node-ip", action="store_true", help="let the kubelet resolve its own name")
    parser.add_argument("--cgroupfs", action="store_true", help="the cgroupfs driver instead of systemd's")
    return parser.parse_args()


def measure(lab: Lab, system: DebianRelease, settings: BaselineSettings, number: int) -> JoinTimings:
    name = f"baseline-{number}"
    with lab.exclusive():
        machine = lab.inventory.add(name, system, "bench", TerminalProgress())
    try:
        return join(lab, machine, settings)
    finally:
        lab.cluster.run("delete", "node", name, "--ignore-not-found", "--wait=false")
        lab.cluster.run("delete", "pod", f"web-{name}", "--ignore-not-found", "--force", "--grace-period=0")
        with lab.exclusive():
            lab.inventory.remove(machine)


def summary(rounds: Sequence[JoinTimings]) -> dict[str, dict[str, float]]:
    """Returns median and spread of every phase, and of the total time to Ready."""
    series = {phase: [joined.phases[phase] for joined in rounds] for phase in rounds[0].phases}
    series["to_ready"] = [joined.ready for joined in rounds]
    return {
        phase: {
            "median": round(statistics.median(values), 3),
            "min": round(min(values), 3),
            "max": round(max(values), 3),
        }
        for phase, values in series.items()
    }


def main() -> None:
    options = arguments()
    settings = BaselineSettings(
        NodeVersions(kubernetes=options.kubernetes, containerd=options.containerd),
        node_ip=not options.no_node_ip,
        systemd_cgroup=not options.cgroupfs,
    )
    rounds = []
    with running_lab(options.lab) as lab:
        for number in range(1, options.rounds + 1):
            joined = measure(lab, DebianRelease(options.os), settings, number)
            rounds.append(joined)
            phases = "  ".join(f"{phase} {seconds:.2f}" for phase, seconds in joined.phases.items())
            print(f"round {number}:  {phases}  =  ready in {joined.ready:.2f} s", flush=True)
    print(json.dumps({"bench": "baseline", "rounds": len(rounds), "os": options.os, "seconds": summary(rounds)}))


if __name__ == "__main__":
    main()
