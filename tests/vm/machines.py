"""Virtual machines and their managed nodes for a block, which are removed when it ends or fails."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from aks_flex_lab.machines.base_system import DebianRelease
from tests.harness import Lines
from tests.lab_machines import removed_afterwards
from tests.managed_node import ManagedLabNode

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aks_flex_lab.architecture import Architecture
    from aks_flex_lab.lab import Lab
    from aks_flex_lab.machines.machine import EdgeMachine


@contextmanager
def virtual_machine(
    lab: Lab, name: str, system: DebianRelease = DebianRelease.BOOKWORM, arch: Architecture | None = None
) -> Iterator[EdgeMachine]:
    """Creates a machine, by default of the host's architecture. Removes it and its Node afterwards."""
    machine = lab.add_virtual_machine(name, system, "site-1", arch, Lines())
    with removed_afterwards(lab, machine):
        yield machine


@contextmanager
def managed_virtual_node(
    lab: Lab,
    name: str,
    system: DebianRelease = DebianRelease.BOOKWORM,
    arch: Architecture | None = None,
    **properties: Any,
) -> Iterator[ManagedLabNode]:
    """Creates a managed node that has not joined. Deletes its resource, its machine and its Node afterwards."""
    with virtual_machine(lab, name, system, arch) as machine:
        node = ManagedLabNode.make(lab, machine, **properties)
        try:
            yield node
        finally:
            node.delete()
