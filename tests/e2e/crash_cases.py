"""Kills the agent at one point of a join or an unbootstrap on a lab machine, and checks the next run."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import TYPE_CHECKING

from tests.agents import differences, facts, flex

if TYPE_CHECKING:
    from aks_flex_lab.lab import Lab
    from aks_flex_lab.machines.machine import EdgeMachine
    from aks_flex_lab.snapshots import Snapshot

DRIVER = Path(__file__).with_name("crash_harness.py")


def drive(machine: EdgeMachine, what: str, point: int) -> str:
    """Runs a command up to a point; returns its output."""
    return machine.run("python3", "-I", "-", what, str(point), input=DRIVER.read_text(), check=False, timeout=240).out


def points(machine: EdgeMachine, what: str) -> int:
    """Returns the number of points, by a complete run."""
    said = drive(machine, what, 0)
    found = re.search(r"points (\d+)", said)
    assert found, said
    return int(found[1])


def join_dies_and_is_run_again(lab: Lab, machine: EdgeMachine, point: int) -> None:
    said = drive(machine, "join", point)
    assert "killed" in said, f"point {point}: {said}"
    flex(machine, "bootstrap", "--skip-phase", "preflight")
    assert lab.cluster.node_ready(machine.name), said
    assert facts(machine, "verify", check=False) == {"clean": True, "differences": []}, said


def reset_dies_and_is_run_again(machine: EdgeMachine, point: int, before: Snapshot) -> None:
    said = drive(machine, "reset", point)
    assert "killed" in said, f"point {point}: {said}"
    flex(machine, "unbootstrap", "--yes")
    left = differences(before, machine)
    assert left == [], "\n".join([said, *left])


def some(count: int, of: int, seed: int) -> list[int]:
    """Returns points that are spread over the range; the same for the same seed."""
    chosen = random.Random(seed)  # noqa: S311 - not for secrecy
    width = of / count
    return sorted({min(of, int(width * place + chosen.random() * width) + 1) for place in range(count)})
