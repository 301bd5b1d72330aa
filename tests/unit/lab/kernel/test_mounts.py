"""Tests of the removal of directories without following mounts."""

from __future__ import annotations

from pathlib import Path

from aks_flex_lab.kernel.mounts import parse_mounts, remove_tree

MOUNTINFO = """\
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
90 22 0:41 / /var/lib/a\\040lab/m rw shared:2 - overlay overlay rw
"""


def test_escaped_mount_points_are_decoded() -> None:
    assert parse_mounts(MOUNTINFO) == [Path("/"), Path("/var/lib/a lab/m")]


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
