"""Fixtures: virtual machines of the lab. Time limits of the lab are longer for emulated ones."""

from __future__ import annotations

import json
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from aks_flex_lab.files import write_atomically
from tests.vm.machines import managed_virtual_node, virtual_machine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from aks_flex_lab.lab import Lab
    from aks_flex_lab.machines.machine import EdgeMachine
    from tests.managed_node import ManagedLabNode

pytest.register_assert_rewrite("tests.vm.node_lifecycle")


def pytest_addoption(parser: pytest.Parser) -> None:
    cuts_help = "Number of random moments at which the power is lost, rounded up to rounds of six."
    parser.addoption("--power-cuts", type=int, default=6, help=cuts_help)
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
    with ExitStack() as machines:
        yield lambda name, *kind: machines.enter_context(virtual_machine(lab, name, *kind))


@pytest.fixture
def add_virtual_node(lab: Lab) -> Iterator[Callable[..., ManagedLabNode]]:
    """Yields a function that creates managed nodes on virtual machines; removes them after the test."""
    with ExitStack() as nodes:
        yield lambda name, *kind, **properties: nodes.enter_context(
            managed_virtual_node(lab, name, *kind, **properties)
        )
