"""Joins new machines alternately with the agent and the baseline script; the last line is one JSON object.

Also measures a second bootstrap, an unbootstrap, and the peak memory of the agent on the same machines.
"""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

from aks_flex_lab import node_agent
from aks_flex_lab.baseline.join import BaselineSettings, ReadinessWatch, join
from aks_flex_lab.machines.base_system import DebianRelease
from aks_flex_lab.versions import NodeVersions
from bench.figures import medians, print_result, print_round, spreads
from bench.lab import added_machine, running_lab
from bench.options import LAB, SYSTEM, Option, parse

if TYPE_CHECKING:
    from aks_flex_lab.lab import Lab
    from aks_flex_lab.machines.machine import EdgeMachine

OPTIONS = (
    Option("--rounds", 5, "number of machines of each kind, one after another"),
    LAB,
    SYSTEM,
    Option("--containerd", NodeVersions.containerd),
)
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
    options = parse("join", __doc__, *OPTIONS)
    settings = BaselineSettings(NodeVersions(containerd=options.containerd))
    rounds: list[dict[str, float]] = []
    with running_lab(options.lab) as lab:
        for number in range(1, options.rounds + 1):
            system = DebianRelease(options.os)
            with added_machine(lab, f"baseline-{number}", system) as machine:
                baseline = join(lab, machine, settings).ready
            with added_machine(lab, f"agent-{number}", system) as machine:
                found = agent(lab, machine, settings)
            rounds.append({"baseline": baseline, **found, "ratio": found["join"] / baseline})
            whole = {key: value for key, value in rounds[-1].items() if not key.startswith(PHASE)}
            print_round(f"round {number}", whole)
    figures = {"median": medians(rounds, 3), "spread": spreads(rounds, 3)}
    print_result("join", rounds=len(rounds), os=options.os, **figures)


if __name__ == "__main__":
    main()
