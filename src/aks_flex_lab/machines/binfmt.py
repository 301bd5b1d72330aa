"""Runs programs of another architecture on this host while a base system of that architecture is built.

The kernel starts them with QEMU's user emulation, which it finds by the first bytes of a program (binfmt_misc). The
registration is one for the whole host, and is removed at the end.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

from aks_flex_lab.architecture import Architecture
from aks_flex_lab.errors import HostError
from aks_flex_lab.files import file_lock
from aks_flex_lab.processes import run

if TYPE_CHECKING:
    from collections.abc import Iterator

BINFMT = Path("/proc/sys/fs/binfmt_misc")
LOCK = Path("/run/aks-flex-lab-binfmt.lock")
# The header of an ELF executable: 64 bits, little endian, and the number of the architecture.
ELF_MACHINES = {Architecture.ARM64: 0xB7, Architecture.AMD64: 0x3E}
ELF_START = b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x02\x00"
ELF_MASK = b"\xff" * 7 + b"\x00" + b"\xff" * 8 + b"\xfe\xff\xff\xff"


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
