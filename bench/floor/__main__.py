"""Joins fresh machines by hand and says how long each phase took; the last line is one JSON object."""

from __future__ import annotations

import argparse
import json
import statistics
from typing import TYPE_CHECKING

from aks_flex_node.lab.cli.progress import ScreenProgress
from aks_flex_node.lab.floor.join import Joined, Settings, Versions, join
from aks_flex_node.lab.machines.bases import System
from bench.labs import standing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aks_flex_node.lab.lab import Lab


def arguments() -> argparse.Namespace:
    words = argparse.ArgumentParser(prog="bench.floor", description=__doc__)
    words.add_argument("--rounds", type=int, default=5, help="how many machines, one after another")
    words.add_argument("--lab", default="bench", help="in which lab; it is brought up and taken away unless it is up")
    words.add_argument("--os", choices=[system.value for system in System], default=System.BOOKWORM.value)
    words.add_argument("--containerd", default=Versions.containerd)
    words.add_argument("--kubernetes", default=Versions.kubernetes)
    words.add_argument("--no-node-ip", action="store_true", help="let the kubelet look its own name up")
    words.add_argument("--cgroupfs", action="store_true", help="the cgroupfs driver instead of systemd's")
    return words.parse_args()


def measure(lab: Lab, system: System, settings: Settings, number: int) -> Joined:
    name = f"floor-{number}"
    with lab.alone():
        machine = lab.inventory.add(name, system, "bench", ScreenProgress())
    try:
        return join(lab, machine, settings)
    finally:
        lab.cluster.run("delete", "node", name, "--ignore-not-found", "--wait=false")
        lab.cluster.run("delete", "pod", f"web-{name}", "--ignore-not-found", "--force", "--grace-period=0")
        with lab.alone():
            lab.inventory.remove(machine)


def summary(rounds: Sequence[Joined]) -> dict[str, dict[str, float]]:
    """Median and spread of every phase, and of the way to Ready as a whole."""
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
    told = arguments()
    settings = Settings(
        Versions(kubernetes=told.kubernetes, containerd=told.containerd),
        node_ip=not told.no_node_ip,
        systemd_cgroup=not told.cgroupfs,
    )
    rounds = []
    with standing(told.lab) as lab:
        for number in range(1, told.rounds + 1):
            joined = measure(lab, System(told.os), settings, number)
            rounds.append(joined)
            phases = "  ".join(f"{phase} {seconds:.2f}" for phase, seconds in joined.phases.items())
            print(f"round {number}:  {phases}  =  ready in {joined.ready:.2f} s", flush=True)
    print(json.dumps({"bench": "floor", "rounds": len(rounds), "os": told.os, "seconds": summary(rounds)}))


if __name__ == "__main__":
    main()
