"""Fixtures: virtual machines of the lab. Time limits of the lab are longer for emulated ones."""

from __future__ import annotations

import json
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from aks_flex_lab.files import write_atomically
from aks_flex_lab.machines.base_system import DebianRelease
from aks_flex_lab.machines.qemu import Architecture
from tests.harness import Lines
from tests.managed_node import ManagedLabNode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from aks_flex_lab.lab import Lab
    from aks_flex_lab.machines.machine import EdgeMachine

pytest.register_assert_rewrite("tests.vm.node_life")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--power-cuts", type=int, default=3, help="Number of random moments at which the power is lost.")
    parser.addoption("--figures", type=Path, help="Write what the tests measure into this file, as JSON.")


class Figures:
    """What the tests measure, by the name of the run."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        if path:
            path.parent.mkdir(parents=True, exist_ok=True)
        self.found: dict[str, dict[str, Any]] = {}

    def record(self, run: str, name: str, value: Any) -> None:
        print(f"{run}: {name}: {value}", flush=True)
        self.found.setdefault(run, {})[name] = value
        if self.path:
            write_atomically(self.path, json.dumps(self.found))

    @contextmanager
    def phase(self, run: str, name: str) -> Iterator[None]:
        """Measures the seconds of the block."""
        began = time.monotonic()
        yield
        self.record(run, name, round(time.monotonic() - began, 1))


@pytest.fixture(scope="session")
def figures(request: pytest.FixtureRequest) -> Figures:
    return Figures(request.config.getoption("--figures", None))


@pytest.fixture
def add_virtual(lab: Lab) -> Iterator[Callable[..., EdgeMachine]]:
    """Yields a function that creates virtual machines; removes them after the test."""
    made: list[EdgeMachine] = []

    def add(
        name: str, system: DebianRelease = DebianRelease.BOOKWORM, arch: Architecture = Architecture.AMD64
    ) -> EdgeMachine:
        with lab.exclusive():
            made.append(lab.inventory.add_virtual(name, system, "site-1", arch, Lines()))
        return made[-1]

    yield add
    for machine in made:
        with lab.exclusive():
            lab.inventory.remove(machine)
        lab.cluster.run("delete", "node", machine.name, "--ignore-not-found", "--wait=false")


@pytest.fixture
def add_virtual_node(lab: Lab, add_virtual: Callable[..., EdgeMachine]) -> Iterator[Callable[..., ManagedLabNode]]:
    """Yields a function that creates managed nodes on virtual machines; deletes their resources after the test."""
    made: list[ManagedLabNode] = []

    def make(name: str, *kind: object, **properties: object) -> ManagedLabNode:
        made.append(ManagedLabNode.make(lab, add_virtual(name, *kind), **properties))
        return made[-1]

    yield make
    for node in made:
        node.delete()
