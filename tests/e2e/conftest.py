"""Fixtures: a machine that the tests of one file share. Each test restores it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from aks_flex_lab.machines.base_system import DebianRelease
from tests.agents import flex, prepare

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aks_flex_lab.lab import Lab
    from aks_flex_lab.machines.machine import EdgeMachine


@pytest.fixture(scope="module")
def shared(lab: Lab, request: pytest.FixtureRequest) -> Iterator[EdgeMachine]:
    name = request.module.__name__.rpartition("_")[2]
    with lab.exclusive():
        machine = lab.inventory.add(f"shared-{name}", DebianRelease.BOOKWORM, "site-1")
    prepare(lab, machine)
    yield machine
    with lab.exclusive():
        lab.inventory.remove(machine)
    lab.cluster.run("delete", "node", machine.name, "--ignore-not-found", "--wait=false")


@pytest.fixture
def machine(lab: Lab, shared: EdgeMachine) -> Iterator[EdgeMachine]:
    """Yields the shared machine, which is not a node before and after the test."""
    yield shared
    lab.mirror.reset()
    flex(shared, "unbootstrap", "--yes", "--drain-timeout", "5")
