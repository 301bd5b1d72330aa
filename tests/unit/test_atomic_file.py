"""Tests of atomic file writes: content and mode, and no leftovers after a failure."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

import pytest

from aks_flex_node import atomic_file

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def closed_umask() -> Iterator[None]:
    before = os.umask(0o077)
    yield
    os.umask(before)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_write_replaces_content_and_mode(tmp_path: Path) -> None:
    file = tmp_path / "file"
    atomic_file.write(file, b"old", 0o644)
    atomic_file.write(file, b"new", 0o600)

    assert (file.read_bytes(), mode_of(file)) == (b"new", 0o600)
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.usefixtures("closed_umask")
def test_umask_applies_only_with_keep_umask(tmp_path: Path) -> None:
    exact, kept = tmp_path / "exact", tmp_path / "kept"
    atomic_file.write(exact, b"", 0o644)
    atomic_file.write(kept, b"", 0o644, keep_umask=True)

    assert (mode_of(exact), mode_of(kept)) == (0o644, 0o600)


def test_failed_rename_leaves_no_temporary_file(tmp_path: Path) -> None:
    directory = tmp_path / "directory"
    directory.mkdir()

    with pytest.raises(IsADirectoryError):
        atomic_file.write(directory, b"content", 0o644)
    assert list(tmp_path.iterdir()) == [directory]


def test_create_never_replaces_or_writes_through_existing_symlink(tmp_path: Path) -> None:
    link, target = tmp_path / "link", tmp_path / "target"
    link.symlink_to(target)

    with pytest.raises(FileExistsError):
        atomic_file.create(link, b"content", 0o644)
    assert link.is_symlink()
    assert not target.exists()
