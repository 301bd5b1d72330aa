"""Starts a lab for a benchmark, and adds machines to it."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from aks_flex_lab.cli.console import TerminalProgress
from aks_flex_lab.lab import Lab
from aks_flex_lab.layout import lab_layout
from aks_flex_lab.machines.base_system import DebianRelease
from aks_flex_lab.tools.catalog import suite_tools
from tests.lab_machines import temporary_machine

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from aks_flex_lab.machines.machine import EdgeMachine


@contextmanager
def running_lab(name: str) -> Iterator[Lab]:
    """Yields the lab of this name; removes it afterwards unless it was running before."""
    lab = Lab(lab_layout(name))
    was_up = lab.exists
    try:
        lab.provide(suite_tools(), TerminalProgress())  # some benchmarks join nodes with earlier versions
        lab.up(TerminalProgress())
        yield lab
    finally:
        if not was_up:
            lab.down()


def add_machine(
    lab: Lab, name: str, system: DebianRelease = DebianRelease.BOOKWORM, network: str = "bench"
) -> EdgeMachine:
    with lab.exclusive():
        return lab.inventory.add(name, system, network, TerminalProgress())


def added_machine(
    lab: Lab, name: str, system: DebianRelease = DebianRelease.BOOKWORM
) -> AbstractContextManager[EdgeMachine]:
    """Returns a context with a new machine; it is removed afterwards, with its Node and its pods."""
    return temporary_machine(lab, name, system, "bench", TerminalProgress())
