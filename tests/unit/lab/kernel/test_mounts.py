"""Removing directories without ever crossing into something mounted there."""

from __future__ import annotations

from pathlib import Path

from aks_flex_lab.kernel.mounts import parse_mounts, remove_tree

MOUNTINFO = """\
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
90 22 0:41 / /var/lib/a\\040lab/m rw shared:2 - overlay overlay rw
"""


def test_mount_points_with_odd_letters_are_read_as_they_are() -> None:
    assert parse_mounts(MOUNTINFO) == [Path("/"), Path("/var/lib/a lab/m")]


def test_a_tree_goes_with_all_that_is_in_it_but_not_what_links_point_to(tmp_path: Path) -> None:
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


def test_what_is_not_there_needs_no_removing(tmp_path: Path) -> None:
    remove_tree(tmp_path / "nothing")

    assert list(tmp_path.iterdir()) == []
