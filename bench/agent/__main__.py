"""Measures memory and CPU time of the daemon; the last line is one JSON object.

A machine joins with its URL, and the daemon runs as a service. First the daemon is idle: memory and CPU time of the
process, including its children, are measured. Then the same poller polls the lab's resource provider 10,000 times, at
the highest rate that the provider allows one caller: the memory must not grow, and the cost of a poll is reported.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aks_flex_lab.machines.base_system import DebianRelease
from bench.figures import print_result
from bench.lab import add_machine, running_lab
from bench.options import LAB, SYSTEM, Option, parse
from tests.managed_node import ManagedLabNode

if TYPE_CHECKING:
    from aks_flex_lab.machines.machine import EdgeMachine

UNIT = "aks-flex-node"
INSIDE = Path(__file__).with_name("inside.py")
SETTLED = 20.0  # seconds after which the start is complete
OPTIONS = (
    Option("--seconds", 120.0, "duration of the idle measurement"),
    Option("--polls", 10_000),
    LAB,
    SYSTEM,
)


def shown(machine: EdgeMachine, name: str) -> str:
    return machine.run("systemctl", "show", "--value", "-p", name, UNIT).out.strip()


def processor(pid: str, machine: EdgeMachine) -> float:
    """Returns the CPU seconds of a process and of the children that it has waited for."""
    fields = machine.run("cat", f"/proc/{pid}/stat").out.rpartition(")")[2].split()
    return sum(int(ticks) for ticks in fields[11:15]) / os.sysconf("SC_CLK_TCK")


def memory(pid: str, machine: EdgeMachine) -> float:
    lines = machine.run("cat", f"/proc/{pid}/status").out.splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024


def measure_idle(machine: EdgeMachine, seconds: float) -> dict[str, float]:
    time.sleep(SETTLED)
    pid = shown(machine, "MainPID")
    start, before = time.monotonic(), processor(pid, machine)
    time.sleep(seconds)
    used = processor(pid, machine) - before
    return {
        "rss_mib": round(memory(pid, machine), 1),
        "cpu_percent": round(100 * used / (time.monotonic() - start), 3),
    }


def measure_polls(machine: EdgeMachine, polls: int) -> dict[str, Any]:
    """Runs the poller of the installed agent in place of the daemon, at a high rate."""
    machine.run("systemctl", "stop", UNIT)
    machine.run("sh", "-c", "cat >/root/inside.py", input=INSIDE.read_text())
    output = machine.run("python3", "-I", "/root/inside.py", str(polls), str(polls // 10), timeout=1800).out
    found = json.loads(output.splitlines()[-1])
    first, last = found["seen"][0], found["seen"][-1]
    return {
        "polls": last["polls"],
        "states": found["states"],
        "polls_per_second": round(last["polls"] / found["seconds"], 1),
        "cpu_ms_per_poll": round(1000 * (last["cpu"] - first["cpu"]) / (last["polls"] - first["polls"]), 2),
        "rss_mib": [round(one["kib"] / 1024, 1) for one in found["seen"]],
        "growth_mib": round((last["kib"] - first["kib"]) / 1024, 2),
    }


def main() -> None:
    options = parse("agent", __doc__, *OPTIONS)
    with running_lab(options.lab) as lab:
        machine = add_machine(lab, "agent-1", DebianRelease(options.os))
        node = ManagedLabNode.make(lab, machine)
        node.join()
        node.wait_until_ready()
        steady = measure_idle(machine, options.seconds)
        print(f"idle: {steady}", flush=True)
        many = measure_polls(machine, options.polls)
        node.delete()
    print_result("agent", os=options.os, in_peace=steady, hurried=many)


if __name__ == "__main__":
    main()
