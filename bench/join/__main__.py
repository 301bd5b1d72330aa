"""Joins new machines alternately with the agent and the baseline script; the last line is one JSON object.

Also measures a second bootstrap, an unbootstrap, and the peak memory of the agent on the same machines.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import time
from typing import TYPE_CHECKING

from aks_flex_lab import node_agent
from aks_flex_lab.baseline.join import BaselineSettings, ReadinessWatch, join
from aks_flex_lab.cli.console import TerminalProgress
from aks_flex_lab.machines.base_system import DebianRelease
from aks_flex_lab.versions import NodeVersions
from bench.lab import running_lab

if TYPE_CHECKING:
    from collections.abc import Callable

    from aks_flex_lab.lab import Lab
    from aks_flex_lab.machines.machine import EdgeMachine

PHASE = "phase: "
TIMED = ("/usr/bin/python3", "-c")
# Runs a command and prints its peak memory and CPU time.
MEASURE = """
import resource, subprocess, sys
code = subprocess.run(sys.argv[1:]).returncode
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(f"peak {used.ru_maxrss} KiB cpu {used.ru_utime + used.ru_stime:.2f} s")
sys.exit(code)
"""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench.join", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="number of machines of each kind, one after another")
    parser.add_argument(
        "--lab", default="bench", help="name of the lab; started, and removed at the end, unless it is running"
    )
    parser.add_argument(
        "--os", choices=[system.value for system in DebianRelease], default=DebianRelease.BOOKWORM.value
    )
    parser.add_argument("--containerd", default=NodeVersions.containerd)
    return parser.parse_args()


def with_machine(
    lab: Lab, name: str, system: DebianRelease, act: Callable[[EdgeMachine], dict[str, float]]
) -> dict[str, float]:
    with lab.exclusive():
        machine = lab.inventory.add(name, system, "bench", TerminalProgress())
    try:
        return act(machine)
    finally:
        lab.cluster.run("delete", "node", name, "--ignore-not-found", "--wait=false")
        lab.cluster.run("delete", "pod", f"web-{name}", "--ignore-not-found", "--force", "--grace-period=0")
        with lab.exclusive():
            lab.inventory.remove(machine)


def baseline(lab: Lab, machine: EdgeMachine, settings: BaselineSettings) -> dict[str, float]:
    return {"baseline": join(lab, machine, settings).ready}


def agent(lab: Lab, machine: EdgeMachine, settings: BaselineSettings) -> dict[str, float]:
    """Measures a join with the agent, a second bootstrap and an unbootstrap."""
    node_agent.install(machine)
    node_agent.write_configuration(machine, node_agent.configuration(lab, settings.versions))
    watch = ReadinessWatch(lab, machine.name)
    watch.start()
    start = time.time()
    memory, output = timed(machine, "bootstrap")
    over = time.time() - start
    found = {"join": watch.wait("node", machine) - start, "join_returns": over, "join_peak_mib": memory}
    found |= {f"{PHASE}{name}": seconds for name, seconds in phases(output, over).items()}
    for name, command in {"again": ("bootstrap",), "verify": ("verify",), "reset": ("unbootstrap", "--yes")}.items():
        start = time.time()
        found[f"{name}_peak_mib"], _ = timed(machine, *command)
        found[name] = time.time() - start
    return found


def timed(machine: EdgeMachine, *command: str) -> tuple[float, str]:
    """Runs a command of the agent; returns its peak memory and its output."""
    done = machine.run(*TIMED, MEASURE, "aks-flex-node", *command, timeout=240)
    found = re.search(r"peak (\d+) KiB", done.out)
    return (int(found[1]) / 1024 if found else 0.0), done.out + done.err


def phases(output: str, over: float) -> dict[str, float]:
    """Returns the duration of each step of a join from the agent's output; the rest is start and checks."""
    steps = {
        name: float(seconds) for name, seconds in re.findall(r"^  ✓ (\S.*?)  .*?([\d.]+) s$", output, re.MULTILINE)
    }
    return {"start, checks and end": over - sum(steps.values()), **steps}


def main() -> None:
    options = arguments()
    settings = BaselineSettings(NodeVersions(containerd=options.containerd))
    rounds: list[dict[str, float]] = []
    with running_lab(options.lab) as lab:
        for number in range(1, options.rounds + 1):
            system = DebianRelease(options.os)
            bare = with_machine(lab, f"baseline-{number}", system, lambda one: baseline(lab, one, settings))
            ours = with_machine(lab, f"agent-{number}", system, lambda one: agent(lab, one, settings))
            rounds.append({**bare, **ours, "ratio": ours["join"] / bare["baseline"]})
            print(
                f"round {number}:  "
                + "  ".join(f"{key} {value:.2f}" for key, value in rounds[-1].items() if not key.startswith(PHASE)),
                flush=True,
            )
    medians = {key: round(statistics.median(one[key] for one in rounds), 3) for key in rounds[0]}
    ranges = {key: [round(pick(one[key] for one in rounds), 3) for pick in (min, max)] for key in rounds[0]}
    spread = {key: {"median": medians[key], "min": ranges[key][0], "max": ranges[key][1]} for key in medians}
    print(json.dumps({"bench": "join", "rounds": len(rounds), "os": options.os, "median": medians, "spread": spread}))


if __name__ == "__main__":
    main()
