"""Files that hold secrets: created with mode 0600, replaced atomically, and refused when others can read them."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from aks_flex_node import atomic_file
from aks_flex_node.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path


def read(file: Path, forbidden: int = 0o077) -> bytes:
    """What is in a file, which must be one that nobody else can read; `forbidden` are the modes it may not have."""
    try:
        with file.open("rb") as opened:
            mode = os.fstat(opened.fileno()).st_mode
            content = opened.read()
    except OSError as error:
        raise ConfigError(
            "private-file-unreadable",
            f"{file} cannot be read: {error.strerror}.",
            "Check that it is there, and that it belongs to whom the service runs as.",
        ) from error
    if stat.S_IMODE(mode) & forbidden:
        raise ConfigError(
            "private-file-permissions",
            f"{file} holds a secret, and others than its owner can read or write it.",
            f"Type `chmod 600 {file}`, and think about who may have read it.",
        )
    return content


def write(file: Path, content: bytes, mode: int = 0o600) -> None:
    """Put it in the place of what was there before, on the disk when this returns."""
    _make_parent(file)
    atomic_file.write(file, content, mode, keep_umask=True)
    atomic_file.sync_directory(file.parent)


def create(file: Path, content: bytes, mode: int = 0o600) -> bool:
    """Make it where there is none yet; False when another was faster, whose file stays."""
    _make_parent(file)
    part = atomic_file.random_sibling(file)
    atomic_file.create(part, content, mode, keep_umask=True)
    try:
        os.link(part, file)
    except FileExistsError:
        return False
    finally:
        part.unlink(missing_ok=True)
    atomic_file.sync_directory(file.parent)
    return True


def _make_parent(file: Path) -> None:
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
