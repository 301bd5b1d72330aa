"""Fixtures: a machine that the tests of one file share. Each test restores it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.agents import flex, prepare
from tests.lab_machines import temporary_machine

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aks_flex_lab.lab import Lab
    from aks_flex_lab.machines.machine import EdgeMachine


@pytest.fixture(scope="module")
def shared(lab: Lab, request: pytest.FixtureRequest) -> Iterator[EdgeMachine]:
    name = request.module.__name__.rpartition("_")[2]
    with temporary_machine(lab, f"shared-{name}") as machine:
        prepare(lab, machine)
        yield machine


@pytest.fixture
def machine(lab: Lab, shared: EdgeMachine) -> Iterator[EdgeMachine]:
    """Yields the shared machine, which is not a node before and after the test."""
    yield shared
    lab.mirror.reset()
    flex(shared, "unbootstrap", "--yes", "--drain-timeout", "5")
