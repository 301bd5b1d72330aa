"""The machines of one lab: adding, finding, copying and removing them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aks_flex_node.lab import dns
from aks_flex_node.lab.entra.given import Given
from aks_flex_node.lab.errors import LabError, UsageError
from aks_flex_node.lab.files import write_atomically
from aks_flex_node.lab.kernel.mounts import remove_tree
from aks_flex_node.lab.machines.bases import Base, System
from aks_flex_node.lab.machines.machine import Machine, Record, load
from aks_flex_node.lab.network import Network, free_machine_number
from aks_flex_node.lab.parts.part import PART_NAMES
from aks_flex_node.lab.pki import Authority
from aks_flex_node.lab.progress import SILENCE, Progress
from aks_flex_node.lab.suggestions import suggest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from aks_flex_node.lab.layout import Layout

NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,28}[a-z0-9])?")
RESERVED = {"api", "audit", "kubernetes", "localhost", *PART_NAMES}
SITE = re.compile(r"[a-z0-9]([a-z0-9-]{0,10}[a-z0-9])?")


@dataclass(frozen=True)
class Inventory:
    layout: Layout

    def all(self) -> list[Machine]:
        names = sorted(path.parent.name for path in self.layout.machines.glob("*/machine.json"))
        return [machine for name in names if (machine := load(self.layout, name))]

    def find(self, name: str) -> Machine:
        if machine := load(self.layout, name):
            return machine
        known = [machine.name for machine in self.all()]
        raise UsageError("machine-unknown", f"Lab {self.layout.name} has no machine {name!r}.", suggest(name, known))

    def add(
        self,
        name: str,
        system: System,
        site_name: str,
        progress: Progress = SILENCE,
        lent: tuple[Path, ...] = (),
    ) -> Machine:
        """A new machine on a fresh disk, booted, that sees what it is lent."""
        self.require_new(name, site_name)
        Base(system, self.layout.cache).build(progress)
        machine = self._register(name, system, site_name, tuple(str(folder) for folder in lent))
        return self._first_boot(machine, lambda: machine.disk.make(machine.base))

    def copy(self, source: Machine, name: str) -> Machine:
        """A new machine on a copy of another's disk: same system, same site, its own name, id and address."""
        self.require_new(name, source.record.site)
        machine = self._register(name, source.record.system, source.record.site, source.record.lent)

        def copy_disk() -> None:
            with source.groups.frozen(source.leaf):
                machine.disk.copy(source.disk)

        return self._first_boot(machine, copy_disk)

    def remove(self, machine: Machine) -> None:
        machine.made.unlink(missing_ok=True)  # if we are killed now, the next sweep goes on
        machine.stop()
        dns.forget(self.layout, machine.name)
        Given(self.layout.parts / "azure" / "state").set(machine.record.address, [])  # the next one is somebody else
        remove_tree(machine.room)

    def _give_up(self, machine: Machine, error: BaseException) -> None:
        """Leave nothing of the machine but what its console said, for whoever wants to know why."""
        if machine.console.exists() and isinstance(error, LabError):
            kept = self.layout.cache / "logs" / f"machine-{machine.name}.log"
            write_atomically(kept, machine.console.read_bytes())
            error.hint = f"What its console said is in {kept}."
        self.remove(machine)

    def sweep(self) -> None:
        """Remove machines that were never finished, because whoever made them was killed."""
        for machine in self.all():
            if not machine.made.exists():
                self.remove(machine)

    def require_new(self, name: str, site: str) -> None:
        """Refuse what cannot be a new machine."""
        self.sweep()
        if not NAME.fullmatch(name):
            raise UsageError(
                "machine-name-invalid",
                f"{name!r} is not a usable machine name.",
                "Use 1 to 30 lower-case letters, digits and dashes, for example edge-1.",
            )
        if not SITE.fullmatch(site):
            raise UsageError(
                "site-name-invalid",
                f"{site!r} is not a usable site name.",
                "Use 1 to 12 lower-case letters, digits and dashes, for example factory.",
            )
        if name in RESERVED:
            raise UsageError(
                "machine-name-invalid",
                f"{name!r} is the name of a part of the lab.",
                "Choose another, for example edge-1.",
            )
        if load(self.layout, name):
            raise UsageError(
                "machine-exists",
                f"Lab {self.layout.name} has a machine {name} already.",
                f"Choose another name, or remove it with `aks-flex-lab machine rm {name}`.",
            )

    def _register(self, name: str, system: System, site_name: str, lent: tuple[str, ...]) -> Machine:
        site = Network(self.layout).site(site_name)
        taken = {machine.record.number for machine in self.all() if machine.record.site == site_name}
        number = free_machine_number(taken)
        machine = Machine(self.layout, Record(name, system, site_name, number, site.address(number), lent))
        remove_tree(machine.room)  # what a killed removal may have left
        machine.save()
        return machine

    def _first_boot(self, machine: Machine, make_disk: Callable[[], None]) -> Machine:
        """Boot a machine for the first time; one that cannot be made leaves nothing behind."""
        try:
            make_disk()
            machine.disk.identify(machine.name, machine.site(), Authority(self.layout.pki))
            machine.made.touch()
            dns.announce(self.layout, machine.name, machine.record.site, machine.record.address)
            machine.start()
        except BaseException as error:
            self._give_up(machine, error)
            raise
        return machine
