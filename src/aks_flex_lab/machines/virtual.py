"""Edge machines that are virtual machines: own kernel, cgroup v2, AppArmor, swap, and a disk with a write cache.

QEMU and the server of the disk run in the cgroup of the machine, QEMU in the network namespace of its site.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from aks_flex_lab import processes
from aks_flex_lab.architecture import Architecture
from aks_flex_lab.files import last_line, write_atomically
from aks_flex_lab.machines import command_channel, disk, qemu
from aks_flex_lab.machines.machine import ENVIRONMENT, EdgeMachine
from aks_flex_lab.machines.qemu import QemuEvents, VirtualHardware
from aks_flex_lab.machines.virtual_base import VirtualBase, mounted, wait_for
from aks_flex_lab.network import LabNetwork, machine_port
from aks_flex_lab.processes import run

if TYPE_CHECKING:
    from pathlib import Path

    from aks_flex_lab.pki import CertificateAuthority

EMULATION_TIMEOUT_FACTOR = 8.0
# Compressed, because the serial port is slow.
COPY_SCRIPT = 'source=$1; shift; tar --create --use-compress-program="gzip -1" --directory="$source" . | "$@"'
# Matches only the machine's network card, so that systemd-networkd leaves the links of pods alone.
NETWORK_FILE = """[Match]
MACAddress={mac}

[Network]
Address={address}/24
Gateway={gateway}
LLMNR=no
IPv6AcceptRA=no
"""


@dataclass(frozen=True)
class VirtualMachine(EdgeMachine):
    @property
    def shares_kernel(self) -> bool:
        return False

    @property
    def timeout_factor(self) -> float:
        return EMULATION_TIMEOUT_FACTOR if self.record.accelerator == qemu.EMULATION else 1.0

    @property
    def base(self) -> VirtualBase:
        return VirtualBase(self.record.system, self.layout.cache, Architecture(self.record.arch))

    @property
    def hardware(self) -> VirtualHardware:
        number, base = self.record.number, self.base
        network = (machine_port(number), self.site().hardware(number))
        return VirtualHardware(self.directory, base.arch, base.kernel, base.initrd, self.record.accelerator, *network)

    def main_pid(self) -> int | None:
        """The process ID of QEMU."""
        return next((pid for pid in self.cgroups.pids(self.cgroup) if _is_qemu(pid)), None)

    def command_inside(self, *argv: str | Path, tty: bool = False) -> list[str]:
        self.require_running()
        terminal = ["TERM=xterm-256color"] if tty else []
        login = ["env", "-i", *ENVIRONMENT.split(), *terminal]
        return command_channel.command(self.directory, *login, *argv, raw=tty and argv[0] == "script")

    def copy_in(self, source: Path, target: str) -> None:
        self.run("mkdir", "-p", target)
        extract = self.command_inside("tar", "--extract", "--gzip", f"--directory={target}")
        run("sh", "-c", COPY_SCRIPT, "sh", source, *extract, timeout=900)

    def create_disk(self) -> None:
        disk.require_disk_space(self.directory)
        _copy_image(self.base.hardware.image, self.hardware.image)

    def copy_disk(self, source: EdgeMachine) -> None:
        """Copies the image of a machine at a moment when all its writes are flushed."""
        disk.require_disk_space(self.directory)
        if source.main_pid():
            source.run("sync")
        with source.cgroups.frozen(source.cgroup):
            _copy_image(source.directory / self.hardware.image.name, self.hardware.image)

    def write_identity(self, authority: CertificateAuthority) -> None:
        site = self.site()
        text = NETWORK_FILE.format(mac=self.hardware.mac, address=self.record.address, gateway=site.gateway)
        with mounted(self.hardware.image, self.directory / "mount") as root:
            disk.write_identity(root, self.name, site, authority)
            write_atomically(root / "etc/systemd/network/10-lab.network", text)

    def prepare(self) -> None:
        """Does nothing: only the disk survives a boot."""

    def boot(self) -> bool:
        hardware = self.hardware
        site = LabNetwork(self.layout).connect_virtual_machine(self.site(), self.record.number)
        hardware.clean()
        log = self.directory / "disk.log"
        server = processes.spawn(self.cgroups.join_command(self.cgroup, hardware.disk_server()), log=log)
        if not wait_for(hardware.disk_socket, server):
            print(f"The server of the disk does not start: {last_line(log)}.")
            return False
        events = QemuEvents(hardware.monitor)
        events.start()
        processes.run_attached(*self.cgroups.join_command(self.cgroup, site.command(*hardware.qemu())))
        return events.requested_reboot()

    def cut_power(self) -> None:
        """Kills QEMU and the disk's server, so that writes that were not flushed are lost."""
        self.cgroups.kill(self.cgroup)

    def disconnect(self) -> None:
        LabNetwork(self.layout).disconnect_virtual_machine(self.site(), self.record.number)


def _copy_image(source: Path, target: Path) -> None:
    run("cp", "--sparse=always", "--reflink=auto", "--", source, target, timeout=600)


def _is_qemu(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/comm") as name:  # noqa: PTH123 - the import of Path is for types only
            return name.read().startswith("qemu-system")
    except (FileNotFoundError, ProcessLookupError):
        return False
