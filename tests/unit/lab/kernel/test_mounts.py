"""Tests of the removal of directories without following mounts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aks_flex_lab.kernel.mounts import remove_tree

if TYPE_CHECKING:
    from pathlib import Path


def test_remove_tree_does_not_delete_symlink_targets(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").write_text("here to stay")
    tree = tmp_path / "tree"
    (tree / "deep").mkdir(parents=True)
    (tree / "deep" / "link").symlink_to(kept)
    (tree / "file").touch()

    remove_tree(tree)

    assert not tree.exists()
    assert (kept / "file").read_text() == "here to stay"


def test_remove_tree_accepts_missing_path(tmp_path: Path) -> None:
    remove_tree(tmp_path / "nothing")

    assert list(tmp_path.iterdir()) == []
