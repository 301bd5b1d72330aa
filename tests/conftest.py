"""The lab that the tests of one run share."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from aks_flex_node.lab.kernel import sysctls
from aks_flex_node.lab.lab import Lab
from aks_flex_node.lab.layout import layout
from aks_flex_node.lab.machines.bases import System
from tests.running import LAB, Lines

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from aks_flex_node.lab.machines.machine import Machine


def pytest_configure() -> None:
    """Who ends the tests politely finds as little left of them as after a Ctrl-C."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)


@pytest.fixture(scope="session")
def lab() -> Iterator[Lab]:
    """One lab for the whole run; another name lets two runs stand side by side."""
    shared = Lab(layout(LAB))
    shared.down()
    others = shared.layout.homes.exists()  # whose settings are not the machine's own
    settings = sysctls.read()
    try:
        shared.up(Lines())
        yield shared
    finally:
        left = shared.down()
    assert left == []
    if not others and not shared.layout.homes.exists():  # else a person's lab is up, and will put them back
        assert sysctls.read() == settings


@pytest.fixture
def add_machine(lab: Lab) -> Iterator[Callable[..., Machine]]:
    """Makes machines, and takes them away after the test."""
    made: list[Machine] = []

    def add(name: str, system: System = System.BOOKWORM, site: str = "site-1") -> Machine:
        with lab.alone():
            made.append(lab.inventory.add(name, system, site))
        return made[-1]

    yield add
    for machine in made:
        with lab.alone():
            lab.inventory.remove(machine)
        lab.cluster.run("delete", "node", machine.name, "--ignore-not-found", "--wait=false")
        lab.cluster.run("delete", "pod", f"web-{machine.name}", "--ignore-not-found", "--force", "--grace-period=0")
        bound = f"--field-selector=spec.nodeName={machine.name}"
        lab.cluster.run("delete", "pod", "--all-namespaces", bound, "--force", "--grace-period=0", check=False)
