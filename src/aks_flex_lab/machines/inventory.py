"""Adds, finds, copies and removes the machines of one lab."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aks_flex_lab import dns
from aks_flex_lab.architecture import Architecture
from aks_flex_lab.entra.directory import MachineIdentities
from aks_flex_lab.errors import LabError, UsageError, did_you_mean
from aks_flex_lab.files import write_atomically
from aks_flex_lab.kernel.mounts import remove_tree
from aks_flex_lab.machines.base_system import BaseSystem, DebianRelease
from aks_flex_lab.machines.container import ContainerMachine
from aks_flex_lab.machines.machine import EdgeMachine, MachineRecord
from aks_flex_lab.machines.virtual import VirtualMachine
from aks_flex_lab.network import LabNetwork, free_machine_number
from aks_flex_lab.pki import CertificateAuthority
from aks_flex_lab.progress import NO_PROGRESS, ProgressReporter
from aks_flex_lab.supervisor import COMPONENT_NAMES

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from aks_flex_lab.layout import LabLayout
    from aks_flex_lab.machines.virtual_base import VirtualBase

MACHINE_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,28}[a-z0-9])?")
RESERVED_NAMES = {"api", "audit", "kubernetes", "localhost", *COMPONENT_NAMES}
SITE_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,10}[a-z0-9])?")


@dataclass(frozen=True)
class MachineInventory:
    layout: LabLayout

    def all(self) -> list[EdgeMachine]:
        names = sorted(path.parent.name for path in self.layout.machines.glob("*/machine.json"))
        return [machine for name in names if (machine := load_machine(self.layout, name))]

    def find(self, name: str) -> EdgeMachine:
        if machine := load_machine(self.layout, name):
            return machine
        known = [machine.name for machine in self.all()]
        raise UsageError(
            "machine-not-found", f"Lab {self.layout.name} has no machine {name!r}.", did_you_mean(name, known)
        )

    def add(
        self,
        name: str,
        system: DebianRelease,
        site_name: str,
        progress: ProgressReporter = NO_PROGRESS,
        lent: tuple[Path, ...] = (),
    ) -> EdgeMachine:
        """Creates a container machine with a new disk, mounts the lent directories read-only, and boots it."""
        self.require_new(name, site_name)
        BaseSystem(system, self.layout.cache).build(progress)
        machine = self._register(name, system, site_name, lent=tuple(str(folder) for folder in lent))
        return self._first_boot(machine, machine.create_disk)

    def add_virtual(self, name: str, base: VirtualBase, site_name: str) -> EdgeMachine:
        """Creates a virtual machine with a copy of the disk of a base system that is built, and boots it."""
        self.require_new(name, site_name)
        kind = {"arch": base.arch, "accelerator": base.accelerator}
        machine = self._register(name, base.system, site_name, **kind)
        return self._first_boot(machine, machine.create_disk)

    def copy(self, source: EdgeMachine, name: str) -> EdgeMachine:
        """Creates a machine with a copy of another's disk: same system and site, but its own name, ID and address."""
        self.require_new(name, source.record.site)
        kind = {"lent": source.record.lent, "arch": source.record.arch, "accelerator": source.record.accelerator}
        machine = self._register(name, source.record.system, source.record.site, **kind)
        return self._first_boot(machine, lambda: machine.copy_disk(source))

    def remove(self, machine: EdgeMachine) -> None:
        machine.created_marker.unlink(missing_ok=True)  # If this process is killed now, the next sweep continues.
        machine.stop()
        dns.remove_host(self.layout, machine.name)
        MachineIdentities(self.layout.components / "azure" / "state").set(
            machine.record.address, []
        )  # A new machine of this name has another identity.
        remove_tree(machine.directory)

    def _discard(self, machine: EdgeMachine, error: BaseException) -> None:
        """Removes the machine and keeps its console log for diagnosis."""
        if machine.console.exists() and isinstance(error, LabError):
            log_file = self.layout.cache / "logs" / f"machine-{machine.name}.log"
            write_atomically(log_file, machine.console.read_bytes())
            error.hint = f"Read its console log {log_file}."
        self.remove(machine)

    def sweep(self) -> None:
        """Removes incomplete machines of commands that were killed."""
        for machine in self.all():
            if not machine.created_marker.exists():
                self.remove(machine)

    def require_new(self, name: str, site: str) -> None:
        """Raises an error unless the name and site are valid for a new machine."""
        self.sweep()
        if not MACHINE_NAME.fullmatch(name):
            raise UsageError(
                "lab-machine-name-invalid",
                f"{name!r} is not a valid name of a machine.",
                "Use 1 to 30 lower-case letters, digits and dashes, for example edge-1.",
            )
        if not SITE_NAME.fullmatch(site):
            raise UsageError(
                "site-name-invalid",
                f"{site!r} is not a valid name of a site.",
                "Use 1 to 12 lower-case letters, digits and dashes, for example factory.",
            )
        if name in RESERVED_NAMES:
            raise UsageError(
                "lab-machine-name-invalid",
                f"{name!r} is the name of a component of the lab.",
                "Use another name, for example edge-1.",
            )
        if load_machine(self.layout, name):
            raise UsageError(
                "machine-exists",
                f"Lab {self.layout.name} already has a machine {name}.",
                f"Use another name, or remove the machine with `aks-flex-lab machine rm {name}`.",
            )

    def _register(self, name: str, system: DebianRelease, site_name: str, **kind: Any) -> EdgeMachine:
        site = LabNetwork(self.layout).site(site_name)
        taken = {machine.record.number for machine in self.all() if machine.record.site == site_name}
        number = free_machine_number(taken)
        record = MachineRecord(name, system, site_name, number, site.address(number), **kind)
        machine = machine_of(self.layout, record)
        remove_tree(machine.directory)  # A killed removal may have left files.
        machine.save()
        return machine

    def _first_boot(self, machine: EdgeMachine, make_disk: Callable[[], None]) -> EdgeMachine:
        """Boots a machine for the first time, and removes it if that fails."""
        try:
            make_disk()
            machine.write_identity(CertificateAuthority(self.layout.pki))
            machine.created_marker.touch()
            dns.add_host(self.layout, machine.name, machine.record.site, machine.record.address)
            machine.start()
        except BaseException as error:
            self._discard(machine, error)
            raise
        return machine


def machine_of(layout: LabLayout, record: MachineRecord) -> EdgeMachine:
    """Returns a machine of the kind that its record names."""
    return VirtualMachine(layout, record) if record.arch else ContainerMachine(layout, record)


def load_machine(layout: LabLayout, name: str) -> EdgeMachine | None:
    record = layout.machines / name / "machine.json"
    if not record.exists():
        return None
    fields = json.loads(record.read_text())
    typed = {
        "system": DebianRelease(fields["system"]),
        "lent": tuple(fields.get("lent", ())),
        "arch": Architecture(arch) if (arch := fields.get("arch")) else None,
    }
    return machine_of(layout, MachineRecord(**{**fields, **typed}))
