"""Tests of the file walk of a snapshot, on a temporary tree."""

from __future__ import annotations

import errno
import hashlib
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from aks_flex_lab.snapshots.collector import file_state as walker

if TYPE_CHECKING:
    from aks_flex_lab.snapshots.collector.probe import Row


def row(tmp_path: Path, name: str) -> Row:
    return walker.file_rows(str(tmp_path), {})[str(tmp_path / name)]


def test_file_row_has_type_mode_owner_size_and_hash(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("abc")
    (tmp_path / "f").chmod(0o640)

    assert row(tmp_path, "f") == {
        "type": "file",
        "mode": "0640",
        "owner": f"{os.getuid()}:{os.getgid()}",
        "size": "3",
        "sha256": hashlib.sha256(b"abc").hexdigest(),
    }


@pytest.mark.parametrize("mode", [0o4755, 0o2755, 0o1755, 0o0754])
def test_file_row_shows_every_mode_bit(tmp_path: Path, mode: int) -> None:
    (tmp_path / "f").touch()
    (tmp_path / "f").chmod(mode)

    assert row(tmp_path, "f")["mode"] == f"{mode:04o}"


def test_file_row_excludes_timestamps(tmp_path: Path) -> None:
    (tmp_path / "f").touch()
    before = walker.file_rows(str(tmp_path), {})
    os.utime(tmp_path / "f", (1, 1))

    assert walker.file_rows(str(tmp_path), {}) == before


def test_walk_does_not_change_access_time(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("abc")
    os.utime(tmp_path / "f", (1, 1))

    walker.file_rows(str(tmp_path), {})

    assert (tmp_path / "f").stat().st_atime == 1


def test_file_row_shows_extended_attributes(tmp_path: Path) -> None:
    (tmp_path / "f").touch()
    try:
        os.setxattr(tmp_path / "f", "user.note", b"x")
    except OSError as error:
        if error.errno != errno.ENOTSUP:
            raise
        pytest.skip("this file system has no extended attributes")

    assert row(tmp_path, "f")["xattr user.note"] == "78"


def test_symlink_row_has_target_and_is_not_traversed(tmp_path: Path) -> None:
    (tmp_path / "to-root").symlink_to("/")
    (tmp_path / "broken").symlink_to("nowhere")

    assert row(tmp_path, "broken")["target"] == "nowhere"
    assert set(walker.file_rows(str(tmp_path), {})) == {
        str(tmp_path),
        str(tmp_path / "to-root"),
        str(tmp_path / "broken"),
    }


def test_fifos_and_sockets_are_recorded_by_type_without_opening(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))

        assert row(tmp_path, "fifo")["type"] == "fifo"
        assert row(tmp_path, "socket")["type"] == "socket"


def test_hard_links_have_identical_rows(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("abc")
    (tmp_path / "b").hardlink_to(tmp_path / "a")

    assert row(tmp_path, "a") == row(tmp_path, "b")


def test_file_name_with_invalid_utf8_is_recorded(tmp_path: Path) -> None:
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff")).touch()

    assert f"{tmp_path}/\udcff" in walker.file_rows(str(tmp_path), {})


def test_walk_skips_files_of_proc_mount_but_not_tmpfs(tmp_path: Path) -> None:
    for kind in ("proc", "tmpfs"):
        (tmp_path / kind).mkdir()
        (tmp_path / kind / "f").touch()

    found = walker.file_rows(str(tmp_path), {str(tmp_path / "proc"): "proc", str(tmp_path / "tmpfs"): "tmpfs"})

    assert str(tmp_path / "proc") in found
    assert str(tmp_path / "proc/f") not in found
    assert str(tmp_path / "tmpfs/f") in found


def test_unreadable_file_is_recorded_with_error(tmp_path: Path) -> None:
    assert walker.file_content(str(tmp_path / "gone")) == {"sha256": "unreadable: No such file or directory"}


def test_file_changing_during_read_is_recorded_as_changing(tmp_path: Path) -> None:
    with (tmp_path / "f").open("wb", buffering=0) as file:

        def somebody_writes(handle: int, _size: int) -> Row:
            os.write(handle, b"x")
            return {"sha256": "of a moment that has passed"}

        assert walker.stable_content(file.fileno(), somebody_writes) == {"sha256": "changing while it was read"}


def test_sparse_file_digest_detects_single_byte_change(tmp_path: Path) -> None:
    path = tmp_path / "sparse"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    empty = row(tmp_path, "sparse")
    with path.open("r+b") as file:
        file.seek(123456789)
        file.write(b"x")

    written = row(tmp_path, "sparse")

    assert written["size"] == empty["size"]
    assert written["sha256 of blocks"] != empty["sha256 of blocks"]


def test_zero_blocks_and_holes_have_same_sparse_digest(tmp_path: Path) -> None:
    for name in ("holes", "zeros"):
        with (tmp_path / name).open("wb") as file:
            file.write(b"a" + bytes(3 * walker.BLOCK) if name == "zeros" else b"a")
            file.truncate(4 * walker.BLOCK)
            file.seek(0, os.SEEK_END)
            file.write(b"end")

    digests = set()
    for name in ("holes", "zeros"):
        with (tmp_path / name).open("rb") as file:
            digests.add(walker.sparse_digest(file.fileno()))

    assert len(digests) == 1
