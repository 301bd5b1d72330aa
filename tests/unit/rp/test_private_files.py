"""Tests of files with secrets: written atomically, and readable only by their owner from the start."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

import pytest

from aks_flex_node.errors import ConfigError
from aks_flex_rp import private_files

if TYPE_CHECKING:
    from pathlib import Path


def test_creating_existing_private_file_keeps_first_content(tmp_path: Path) -> None:
    file = tmp_path / "made" / "key"
    assert private_files.create(file, b"first")
    assert not private_files.create(file, b"second")
    assert private_files.read(file) == b"first"
    assert [each.name for each in file.parent.iterdir()] == ["key"]


def test_writing_private_file_replaces_it_with_mode_0600(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.touch(0o644)
    private_files.write(file, b"new")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert private_files.read(file) == b"new"


def test_private_file_permissions_do_not_depend_on_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        private_files.create(tmp_path / "room" / "key", b"x")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "room" / "key").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "room").stat().st_mode) == 0o700


def test_reading_missing_private_file_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        private_files.read(tmp_path / "nothing")
