"""QEMU's command lines: a virtual machine, and its disk server, which loses unflushed writes when it is killed.

QEMU passes every write of the guest to its block driver at once, so that the host keeps it when QEMU is killed. A
real disk loses what is in its write cache when the power fails. Between QEMU and the image is therefore nbdkit, whose
cache keeps writes in a deleted file until the guest flushes them: killing nbdkit loses the others.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from aks_flex_lab.architecture import Architecture
from aks_flex_lab.errors import HostError, LabError
from aks_flex_lab.files import write_atomically
from aks_flex_lab.kernel.host_state import boot_id
from aks_flex_lab.machines.command_channel import PORTS, port_socket
from aks_flex_lab.machines.guest.command_server import PORT_PREFIX
from aks_flex_lab.processes import run

if TYPE_CHECKING:
    from collections.abc import Iterator


PROGRAMS = {Architecture.AMD64: "qemu-system-x86_64", Architecture.ARM64: "qemu-system-aarch64"}
PACKAGES = {
    "qemu-system-x86_64": "qemu-system-x86",
    "qemu-system-aarch64": "qemu-system-arm",
    "nbdkit": "nbdkit",
    "mkfs.ext4": "e2fsprogs",
}
BOARDS = {Architecture.AMD64: "q35", Architecture.ARM64: "virt"}
CONSOLES = {Architecture.AMD64: "ttyS0", Architecture.ARM64: "ttyAMA0"}
CPUS = 2
MEMORY_MEGABYTES = 2048
# The names eth0 and vda are those of containers and of the machine's fstab.
KERNEL_OPTIONS = "root=/dev/vda rw net.ifnames=0 quiet panic=-1"
EMULATION = "tcg"
VIRTUALIZATION = "kvm"
ACCELERATORS = {EMULATION: "tcg,thread=multi", VIRTUALIZATION: "kvm"}
# Emulated AVX is slower than no AVX: SHA-256 of OpenSSL has 17 MB/s with it, and 40 MB/s without. Page tables of five
# levels and the pointer authentication of arm64 are slow, too. SVM stays on: without it, QEMU does not tell the size
# of addresses, and mounts fail. QEMU 7.2 sets wrong flags in cmpxchg16b, with which Debian 13's kernel allocates
# memory: it failed in a quarter of its boots.
EMULATED_CPUS = {
    Architecture.AMD64: "max,avx=off,avx2=off,la57=off,cx16=off",
    Architecture.ARM64: "max,pauth-impdef=on",
}
KVM_DEVICE = Path("/dev/kvm")
KVM_SECONDS = 20
KERNEL_RAN = "Kernel panic"  # the end of a boot without a disk
REBOOT_EVENT = "guest-reset"
EVENT_SECONDS = 5.0  # to read the last events of QEMU


def missing_packages(arch: Architecture) -> list[str]:
    """Returns the packages that virtual machines need and that are not installed."""
    return [PACKAGES[program] for program in (PROGRAMS[arch], "nbdkit", "mkfs.ext4") if not shutil.which(program)]


def require_programs(arch: Architecture) -> None:
    """Checks that the programs of virtual machines are installed."""
    if missing := missing_packages(arch):
        raise HostError(
            "program-not-found",
            f"These packages are not installed on this machine: {', '.join(missing)}.",
            f"Run `apt-get install --no-install-recommends {' '.join(missing)}`, then retry.",
        )


def accelerator(arch: Architecture, kernel: Path) -> str:
    """Returns KVM if a guest really boots with it on this host, otherwise emulation. Tried once for each boot."""
    if not (arch.is_native and os.access(KVM_DEVICE, os.R_OK | os.W_OK)):
        return EMULATION
    record = kernel.parent.parent / "accelerator"
    known = record.read_text().split() if record.exists() else []
    if known[:1] != [boot_id()]:
        known = [boot_id(), VIRTUALIZATION if _boots_with_kvm(arch, kernel) else EMULATION]
        write_atomically(record, " ".join(known))
    return known[1]


def processor(arch: Architecture, accelerator: str) -> list[str]:
    cpu = EMULATED_CPUS[arch] if accelerator == EMULATION else "host"
    return ["-accel", ACCELERATORS[accelerator], "-cpu", cpu]


def _boots_with_kvm(arch: Architecture, kernel: Path) -> bool:
    """Boots the kernel without a disk, which ends in a panic. Some hosts offer KVM, but their guests hang."""
    options = ("-append", f"console={CONSOLES[arch]} panic=-1", "-no-reboot", "-nographic", "-m", "512")
    cpu = processor(arch, VIRTUALIZATION)
    argv = [PROGRAMS[arch], "-machine", BOARDS[arch], *cpu, "-kernel", str(kernel), *options]
    try:
        return KERNEL_RAN in run(*argv, check=False, timeout=KVM_SECONDS).out
    except LabError:
        return False


@dataclass(frozen=True)
class VirtualHardware:
    """The hardware of one machine, with its disk and its sockets in a directory."""

    directory: Path
    arch: Architecture
    kernel: Path
    initrd: Path
    accelerator: str
    tap: str = ""  # the device of the host for the network; a machine without it has none
    mac: str = ""

    @property
    def image(self) -> Path:
        return self.directory / "disk.img"

    @property
    def disk_socket(self) -> Path:
        return self.directory / "disk.sock"

    @property
    def monitor(self) -> Path:
        """The socket on which QEMU reports its events."""
        return self.directory / "monitor.sock"

    def disk_server(self) -> list[str]:
        """Returns the command of the disk. A flush reaches the image, but need not reach the disk of the host."""
        filters = ["--filter=cache", "--filter=fua", "file", str(self.image), "cache=writeback", "fuamode=discard"]
        return ["nbdkit", "--foreground", f"--unix={self.disk_socket}", *filters]

    def qemu(self, *kernel_options: str) -> list[str]:
        options = " ".join((KERNEL_OPTIONS, f"console={CONSOLES[self.arch]}", *kernel_options))
        return [
            PROGRAMS[self.arch],
            *("-machine", BOARDS[self.arch], "-smp", str(CPUS), "-m", str(MEMORY_MEGABYTES)),
            *processor(self.arch, self.accelerator),
            *("-nodefaults", "-no-user-config", "-display", "none", "-serial", "stdio", "-no-reboot"),
            *("-kernel", str(self.kernel), "-initrd", str(self.initrd)),
            *("-append", options),
            *("-qmp", f"unix:{self.monitor},server=on,wait=off"),
            *("-blockdev", f"nbd,node-name=disk,server.type=unix,server.path={self.disk_socket}"),
            *("-device", "virtio-blk-pci,drive=disk"),
            *(self._network() if self.tap else ()),
            *("-device", "virtio-rng-pci", "-device", f"virtio-serial-pci,max_ports={PORTS + 1}"),
            *(word for number in range(PORTS) for word in self._port(number)),
        ]

    def _network(self) -> Iterator[str]:
        yield from ("-netdev", f"tap,id=net,ifname={self.tap},script=no,downscript=no")
        yield from ("-device", f"virtio-net-pci,netdev=net,mac={self.mac}")

    def _port(self, number: int) -> Iterator[str]:
        path = port_socket(self.directory, number)
        yield from ("-chardev", f"socket,id=port{number},path={path},server=on,wait=off")
        yield from ("-device", f"virtserialport,chardev=port{number},name={PORT_PREFIX}{number}")

    def clean(self) -> None:
        """Removes the sockets of an earlier boot."""
        for path in self.directory.glob("*.sock"):
            path.unlink()


class QemuEvents(threading.Thread):
    """Reads the events of QEMU until it exits, because its exit code does not tell a reboot from a power-off."""

    def __init__(self, monitor: Path) -> None:
        super().__init__(daemon=True)
        self._monitor = monitor
        self._text = ""

    def run(self) -> None:
        with socket.socket(socket.AF_UNIX) as connection:
            while connection.connect_ex(str(self._monitor)):
                time.sleep(0.05)
            with contextlib.suppress(ConnectionError):
                connection.sendall(b'{"execute": "qmp_capabilities"}\n')
                while data := connection.recv(1 << 16):
                    self._text += data.decode(errors="replace")

    def requested_reboot(self) -> bool:
        """Returns whether the system in the machine ended QEMU for a reboot. Call it after the end of QEMU."""
        self.join(EVENT_SECONDS)
        return REBOOT_EVENT in self._text
