"""All cells of the damage matrix, of which `make test` runs a sample."""

from __future__ import annotations

import os
import tempfile
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.damage import harness, real_machine
from tests.damage.matrix import cells_of, make_machines
from tests.damage.real_machine import RealJudge, batches
from tests.damage.verdict import Judge
from tests.managed_node import ManagedLabNode
from tests.wait import until

if TYPE_CHECKING:
    from collections.abc import Callable

    from aks_flex_lab.lab import Lab
    from aks_flex_lab.machines.machine import EdgeMachine


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("axis", ["repair", "session", "bootstrap", "update", "unbootstrap"])
def test_every_damage_is_repaired_or_named(axis: str) -> None:
    with tempfile.TemporaryDirectory() as room:
        machines = make_machines(Path(room))
        judge = Judge(getattr(harness, axis), machines, Path(room))
        found = {str(cell): judge.find_problems_or_failure(cell) for cell in cells_of(machines)}
    assert {cell: problems for cell, problems in found.items() if problems} == {}


@pytest.mark.timeout(12 * 3600)
def test_every_damage_of_a_lab_machine_is_repaired_or_named(
    lab: Lab, add_machine: Callable[..., EdgeMachine]
) -> None:
    node = ManagedLabNode.make(lab, add_machine("damages"), versions={"kubernetes": "1.36.3"})
    judge = RealJudge(node, node.machine.snapshot())
    node.join()
    until(judge.is_whole, "the node is whole")

    # A range of the batches, to distribute the tests over several labs: AKS_FLEX_DAMAGE_BATCHES=120-240.
    first, _, last = os.environ.get("AKS_FLEX_DAMAGE_BATCHES", "").partition("-")
    every = list(batches(real_machine.cells_of(node)))
    problems: list[str] = []
    try:
        for number, batch in enumerate(islice(every, int(first or 1) - 1, int(last or len(every))), int(first or 1)):
            found = judge.find_problems(batch)
            problems += [f"batch {number}, {problem}" for problem in found]
            print(f"batch {number} of {len(every)}: {'failed' if found else 'passed'}: {batch}", flush=True)
    finally:
        node.delete()
    assert problems == []
