"""Tests of which files of a checkout are packed, with a real git."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from aks_flex_lab.processes import run
from release.checkout import ReleaseError, tracked_files

if TYPE_CHECKING:
    from pathlib import Path


def test_untracked_ignored_and_deleted_files_are_not_packed(tmp_path: Path) -> None:
    package = tmp_path / "src" / "pack age"
    package.mkdir(parents=True)
    names = (".gitignore", "kept.py", "deleted.py", "secret.env", "new.py")
    for path in (package / name for name in names):
        path.write_text("secret.env\n" if path.name == ".gitignore" else "")
    run("git", "init", "--quiet", tmp_path)
    run("git", "add", *(package / name for name in names[:3]), cwd=tmp_path)
    (package / "deleted.py").unlink()

    assert [path.name for path in tracked_files([package], tmp_path)] == [".gitignore", "kept.py"]


def test_source_tree_without_git_is_not_packed(tmp_path: Path) -> None:
    with pytest.raises(ReleaseError, match=r"Build from a clone of the repository\."):
        tracked_files([tmp_path], tmp_path)
