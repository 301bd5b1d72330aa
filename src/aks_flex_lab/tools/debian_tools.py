"""Finds tools that are Debian packages of the host, and names the packages to install."""

from __future__ import annotations

import os
import shutil
import struct
from dataclasses import dataclass
from pathlib import Path

from aks_flex_lab.errors import ToolError

SYSTEM_PATHS = ("/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/bin", "/bin")  # sbin may be missing in PATH
ELF_INTERPRETER = 3  # the ELF segment that statically linked programs do not have


@dataclass(frozen=True)
class DebianTool:
    name: str
    package: str
    commands: tuple[str, ...]
    static: bool = False  # static, because it is copied into images without the host's libraries

    version: str = "Debian"  # the version that the host has

    @property
    def title(self) -> str:
        return self.name


def locate(tool: DebianTool, command: str, search: str | None = None) -> Path | None:
    """Returns the path of a command; None when it is missing, or not static if that is required."""
    path = search if search is not None else os.pathsep.join((os.environ.get("PATH", ""), *SYSTEM_PATHS))
    found = shutil.which(command, path=path)
    if found is None or (tool.static and not is_static(Path(found))):
        return None
    return Path(found)


def is_static(program: Path) -> bool:
    """Returns whether a 64-bit ELF program runs without a dynamic linker."""
    with program.open("rb") as file:
        header = file.read(64)
        if len(header) < 64 or header[:4] != b"\x7fELF":
            return False
        offset, size, count = *struct.unpack_from("<Q", header, 32), *struct.unpack_from("<HH", header, 54)
        file.seek(offset)
        table = file.read(size * count)
    kinds = [struct.unpack_from("<I", table, at)[0] for at in range(0, len(table) - 3, size)]
    return ELF_INTERPRETER not in kinds


def missing_packages_error(packages: list[str], what: str) -> ToolError:
    return ToolError(
        "program-not-found",
        f"{what} {'is' if len(packages) == 1 else 'are'} not installed.",
        f"Run `apt-get install --no-install-recommends {' '.join(packages)}`.",
    )
