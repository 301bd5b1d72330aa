"""Files with secrets: created with mode 0600, replaced atomically, and rejected when other users can read them."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from aks_flex_node import atomic_file
from aks_flex_node.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path


def read(file: Path, forbidden: int = 0o077) -> bytes:
    """Reads a file that other users must not be able to read. `forbidden` are the mode bits it must not have."""
    try:
        with file.open("rb") as opened:
            mode = os.fstat(opened.fileno()).st_mode
            content = opened.read()
    except OSError as error:
        raise ConfigError(
            "private-file-unreadable",
            f"{file} cannot be read: {error.strerror}.",
            "Check that the file exists and belongs to the user that runs the service.",
        ) from error
    if stat.S_IMODE(mode) & forbidden:
        raise ConfigError(
            "private-file-permissions",
            f"{file} contains a secret, but users other than its owner can read or write it.",
            f"Run `chmod 600 {file}`, and replace the secret if another user may have read it.",
        )
    return content


def write(file: Path, content: bytes, mode: int = 0o600) -> None:
    """Replaces the file atomically and syncs it to disk."""
    _make_parent(file)
    atomic_file.write(file, content, mode, keep_umask=True)
    atomic_file.sync_directory(file.parent)


def create(file: Path, content: bytes, mode: int = 0o600) -> bool:
    """Creates the file. Returns False and keeps the existing file if there already is one."""
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
