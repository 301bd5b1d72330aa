"""Base systems of virtual machines: Debian with its own kernel, as a disk image that is built once and cached.

bases/NAME/disk.img   an ext4 file system with a swap file; every machine has a copy, which is sparse
bases/NAME/vmlinuz    Debian's kernel, and its initrd.img
"""

from __future__ import annotations

import contextlib
import signal
import time
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from aks_flex_lab import processes
from aks_flex_lab.architecture import Architecture
from aks_flex_lab.errors import HostError, ToolError
from aks_flex_lab.files import file_lock, last_line, write_atomically
from aks_flex_lab.kernel.mounts import remove_tree
from aks_flex_lab.machines import command_channel, guest, qemu
from aks_flex_lab.machines.base_system import MASKED_UNITS, PACKAGES, BaseSystem
from aks_flex_lab.machines.disk import HOSTS
from aks_flex_lab.machines.qemu import VirtualHardware
from aks_flex_lab.processes import run

if TYPE_CHECKING:
    from collections.abc import Iterator

BINFMT = Path("/proc/sys/fs/binfmt_misc")
LOCK = Path("/run/aks-flex-lab-binfmt.lock")
# The header of an ELF executable: 64 bits, little endian, and the number of the architecture.
ELF_MACHINES = {Architecture.ARM64: 0xB7, Architecture.AMD64: 0x3E}
ELF_START = b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x02\x00"
ELF_MASK = b"\xff" * 7 + b"\x00" + b"\xff" * 8 + b"\xfe\xff\xff\xff"
# A kernel, and what an installer adds to a host that is not a container.
VIRTUAL_PACKAGES = "initramfs-tools udev apparmor".split()
# A virtual machine has devices, a clock, a console and logins.
REAL_UNITS = ("systemd-udev", "systemd-networkd", "systemd-logind", "systemd-timesyncd", "getty", "console-getty")
ENABLED_UNITS = ("systemd-networkd.service", "aks-flex-lab.service")
DISK_SIZE = "8G"
SWAP_SIZE = "512M"
SWAP_FILE = "swapfile"
FSTAB = f"/dev/vda / ext4 errors=remount-ro 0 1\n/{SWAP_FILE} none swap sw 0 0\n"
# An emulated machine on a busy host is slow, but nothing in it has failed.
VIRTUAL_SYSTEMD_CONFIG = "[Manager]\nDefaultTimeoutStartSec=15min\nDefaultDeviceTimeoutSec=15min\n"
INITRD_CONFIG = "MODULES=list\n"
INITRD_MODULES = "virtio_pci\nvirtio_blk\next4\n"
INITRD_SCRIPT = 'mount --bind /proc "$1/proc" && mount --rbind /dev "$1/dev" && exec chroot "$1" update-initramfs -u'
COMMAND_SERVER_PATH = "usr/lib/aks-flex-lab/command_server.py"
COMMAND_SERVER_UNIT = f"""[Unit]
Description=Command channel of the lab
DefaultDependencies=no
After=systemd-remount-fs.service
Conflicts=shutdown.target
Before=shutdown.target

[Service]
ExecStartPre=-/sbin/modprobe virtio_console
ExecStart=/usr/bin/python3 -I /{COMMAND_SERVER_PATH}
Restart=always
RestartSec=1
TasksMax=infinity
# What a command has started lives on when the service ends, as in a login session of a server.
KillMode=process

[Install]
WantedBy=sysinit.target
"""
FIRST_BOOT_SCRIPT = "systemctl is-system-running --wait; systemctl poweroff"
FIRST_BOOT_SECONDS = 900.0
FIRST_BOOTS = 3
END_ON_KERNEL_FAILURE = "oops=panic"  # together with `panic=-1`, which reboots, and QEMU's -no-reboot


@dataclass(frozen=True)
class VirtualBase(BaseSystem):
    arch: Architecture

    @property
    def title(self) -> str:
        return f"{self.system.value}-vm-{self.arch.value}"

    @property
    def directory(self) -> Path:
        return self.cache / "bases" / f"{self.title}-{self.key}"

    @property
    def packages(self) -> list[str]:
        return [*PACKAGES, *VIRTUAL_PACKAGES, f"linux-image-cloud-{self.arch.value}"]

    @property
    def debootstrap_options(self) -> list[str]:
        return [f"--arch={self.arch.value}"]

    @property
    def masked_units(self) -> list[str]:
        return [unit for unit in MASKED_UNITS if not unit.startswith(REAL_UNITS)]

    @property
    def systemd_config(self) -> str:
        return VIRTUAL_SYSTEMD_CONFIG

    @property
    def recipe(self) -> list[object]:
        files = [self.systemd_config, FSTAB, INITRD_CONFIG, INITRD_MODULES, COMMAND_SERVER_UNIT, command_server()]
        sizes = [DISK_SIZE, SWAP_SIZE]
        return [self.system.value, self.arch.value, self.packages, self.masked_units, *files, *sizes]

    @property
    def kernel(self) -> Path:
        return self.directory / "vmlinuz"

    @property
    def initrd(self) -> Path:
        return self.directory / "initrd.img"

    @property
    def accelerator(self) -> str:
        return qemu.accelerator(self.arch, self.kernel)

    @property
    def hardware(self) -> VirtualHardware:
        """The machine that boots the image itself, without a network."""
        return VirtualHardware(self.directory, self.arch, self.kernel, self.initrd, self.accelerator)

    def _bootstrap(self) -> None:
        if self.arch.is_native:
            super()._bootstrap()
            return
        with registered_emulator(self.arch):
            super()._bootstrap()

    def _finish(self) -> None:
        """Makes the disk image and boots it once. Of the system, only what a boot needs is kept."""
        write_atomically(self.root / "etc/fstab", FSTAB)
        write_atomically(self.root / "etc/hosts", HOSTS)
        write_atomically(self.root / COMMAND_SERVER_PATH, command_server())
        write_atomically(self.root / "etc/systemd/system/aks-flex-lab.service", COMMAND_SERVER_UNIT)
        run("systemctl", f"--root={self.root}", "enable", "--quiet", *ENABLED_UNITS)
        self._shrink_initrd()
        for pattern, target in (("vmlinuz-*", self.kernel), ("initrd.img-*", self.initrd)):
            (newest,) = (self.root / "boot").glob(pattern)
            run("cp", "--", newest, target)
        self._make_image()
        remove_tree(self.root)
        self.boot_once()

    def _shrink_initrd(self) -> None:
        """Creates an initrd with only the modules of a virtual disk, which boots some seconds faster in emulation."""
        if self.arch.is_native:
            tools = self.root / "etc/initramfs-tools"
            write_atomically(tools / "conf.d/lab.conf", INITRD_CONFIG)
            write_atomically(tools / "modules", INITRD_MODULES)
            run("unshare", "--mount", "sh", "-c", INITRD_SCRIPT, "sh", self.root, timeout=600)

    def _make_image(self) -> None:
        image = self.hardware.image
        run("truncate", f"--size={DISK_SIZE}", image)
        # Otherwise the kernel of the machine initializes these tables in its first minutes.
        options = "lazy_itable_init=0,lazy_journal_init=0"
        run("mkfs.ext4", "-q", "-F", "-E", options, "-d", self.root, image, timeout=600)
        with mounted(image, self.directory / "mount") as root:
            # A swap file that mkfs copies has holes, with which the kernel does not use it.
            swap = root / SWAP_FILE
            run("fallocate", "--length", SWAP_SIZE, swap)
            swap.chmod(0o600)
            run("mkswap", "--quiet", swap)

    def boot_once(self) -> None:
        """Boots the image as an installer does at its end: caches are filled, and later boots are faster.

        An emulated processor rarely makes the kernel fail. It ends then, and the image boots again.
        """
        self._require(any(self._boots_and_powers_off() for _ in range(FIRST_BOOTS)))

    def _boots_and_powers_off(self) -> bool:
        hardware, started = self.hardware, []
        hardware.clean()
        try:
            for argv, path in (
                (hardware.disk_server(), hardware.disk_socket),
                (hardware.qemu(END_ON_KERNEL_FAILURE), command_channel.port_socket(self.directory, 0)),
            ):
                started.append(processes.spawn([*processes.parent_death_wrapper(), *argv], log=self.log))
                self._require(wait_for(path, started[-1]))
            events = qemu.QemuEvents(hardware.monitor)
            events.start()
            script = command_channel.command(self.directory, "sh", "-c", FIRST_BOOT_SCRIPT)
            run(*script, check=False, timeout=FIRST_BOOT_SECONDS)
            return started[-1].wait(FIRST_BOOT_SECONDS) and not events.requested_reboot()
        finally:
            for process in started:
                process.kill(signal.SIGKILL)
            hardware.clean()

    def _require(self, done: bool) -> None:
        if not done:
            raise ToolError(
                "base-system-failed",
                f"The {self.title} base system could not be built: it does not boot: {last_line(self.log)}.",
                f"Read the log {self.log}, then retry.",
            )


def wait_for(path: Path, process: processes.ProcessHandle, seconds: float = 30) -> bool:
    """Waits until a process has created a file; returns whether it did, and did not exit."""
    end = time.monotonic() + seconds
    while not path.exists() and time.monotonic() < end:
        if process.wait(0.02):
            return False
    return path.exists()


@contextlib.contextmanager
def mounted(image: Path, point: Path) -> Iterator[Path]:
    """Mounts a disk image for the block, to write files: the host runs no program of it and opens no device."""
    point.mkdir(exist_ok=True)
    run("mount", "-o", "loop,nodev,nosuid,noexec", image, point)
    try:
        yield point
    finally:
        run("umount", "--", point)
        point.rmdir()


def command_server() -> str:
    """Returns the program that runs commands in a machine."""
    return (resources.files(guest) / "command_server.py").read_text(encoding="utf-8")


# Programs of another architecture run while its base system is built: the kernel starts them with QEMU's user
# emulation, which it finds by the first bytes of a program (binfmt_misc). The registration is one for the whole host,
# and is removed at the end.


def registration_line(arch: Architecture) -> str:
    """Returns the line that registers the emulator. With `F`, the kernel opens it now: a chroot needs no copy."""
    magic = ELF_START + bytes([ELF_MACHINES[arch], 0])
    escaped = ("".join(f"\\x{byte:02x}" for byte in text) for text in (magic, ELF_MASK))
    return ":".join(("", entry_name(arch), "M", "", *escaped, str(arch.user_emulator), "F"))


def entry_name(arch: Architecture) -> str:
    return f"aks-flex-lab-{arch.kernel_name}"


@contextlib.contextmanager
def registered_emulator(arch: Architecture) -> Iterator[None]:
    """Lets this host run programs of another architecture for the block."""
    if not arch.user_emulator.exists():
        raise HostError(
            "program-not-found",
            "These packages are not installed on this machine: qemu-user-static.",
            "Run `apt-get install --no-install-recommends qemu-user-static`, then retry.",
        )
    # One block at a time uses the registration, and removes what an interrupted one left.
    with file_lock(LOCK, "the emulators of this host", wait=True):
        mounted = not (BINFMT / "register").exists()
        if mounted:
            run("mount", "-t", "binfmt_misc", "binfmt_misc", BINFMT)
        entry = BINFMT / entry_name(arch)
        try:
            if not entry.exists():
                (BINFMT / "register").write_text(registration_line(arch))
            yield
        finally:
            with contextlib.suppress(FileNotFoundError):
                entry.write_text("-1")
            if mounted:
                run("umount", "--", BINFMT)
