"""Machines of the lab that tests add for a time."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from aks_flex_lab.machines.base_system import DebianRelease
from aks_flex_lab.progress import NO_PROGRESS, ProgressReporter
from tests.harness import Lines

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from aks_flex_lab.lab import Lab
    from aks_flex_lab.machines.machine import EdgeMachine


@contextmanager
def without_provider(lab: Lab) -> Iterator[None]:
    """Stops the lab's resource provider, which does not know what a test writes to the cluster."""
    provider = lab.supervisor.process("provider")
    assert provider
    provider.stop()
    try:
        yield
    finally:
        lab.up(Lines())


@contextmanager
def removed_afterwards(lab: Lab, machine: EdgeMachine) -> Iterator[EdgeMachine]:
    """Removes a machine at the end of the block, with its Node and its pods."""
    try:
        yield machine
    finally:
        with lab.exclusive():
            lab.inventory.remove(machine)
        name = machine.name
        lab.cluster.run("delete", "node", name, "--ignore-not-found", "--wait=false")
        lab.cluster.run("delete", "pod", f"web-{name}", "--ignore-not-found", "--force", "--grace-period=0")
        bound = f"--field-selector=spec.nodeName={name}"
        lab.cluster.run("delete", "pod", "--all-namespaces", bound, "--force", "--grace-period=0", check=False)


@contextmanager
def temporary_machine(
    lab: Lab,
    name: str,
    system: DebianRelease = DebianRelease.BOOKWORM,
    site: str = "site-1",
    progress: ProgressReporter = NO_PROGRESS,
    lent: tuple[Path, ...] = (),
) -> Iterator[EdgeMachine]:
    with lab.exclusive():
        machine = lab.inventory.add(name, system, site, progress, lent)
    with removed_afterwards(lab, machine):
        yield machine
