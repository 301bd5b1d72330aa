"""The architectures of hosts and of virtual machines, and their names in the kernel, in Debian and in QEMU."""

from __future__ import annotations

import platform
from enum import Enum
from pathlib import Path

from aks_flex_lab.errors import ToolError

KERNEL_NAMES = {"amd64": "x86_64", "arm64": "aarch64"}


class Architecture(str, Enum):
    """An architecture by the name that Debian and Go have for it."""

    AMD64 = "amd64"
    ARM64 = "arm64"

    @classmethod
    def of_host(cls) -> Architecture:
        machine = platform.machine()
        for arch in cls:
            if machine in (arch.value, arch.kernel_name):
                return arch
        raise ToolError(
            "architecture-unsupported",
            f"The lab does not support the architecture of this machine, {machine}.",
            "Use a machine with amd64 or arm64.",
        )

    @property
    def is_native(self) -> bool:
        """Whether it is the architecture of this host."""
        return self is Architecture.of_host()

    @property
    def kernel_name(self) -> str:
        """The name in `uname -m`, in the names of QEMU's programs and in the platforms of Python packages."""
        return KERNEL_NAMES[self.value]

    @property
    def triplet(self) -> str:
        """The name of Debian's directories of libraries, and of compilers for the architecture."""
        return f"{self.kernel_name}-linux-gnu"

    @property
    def user_emulator(self) -> Path:
        """The program of QEMU that runs programs of the architecture on another one, if it is installed."""
        return Path(f"/usr/bin/qemu-{self.kernel_name}-static")
