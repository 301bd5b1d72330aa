"""Tests of archive formats: fixed order, owner and time, and reproducible bytes."""

from __future__ import annotations

import gzip
import io
import tarfile

import pytest

from deb.archive_formats import PackageEntry, ar, ar_members, control_of, read_tar_gz, tar_gz

FILES = {
    "usr/bin/program": PackageEntry(b"#!/bin/sh\n", 0o755),
    "etc/one": PackageEntry(b"1"),
    "usr/link": PackageEntry(target="bin"),
}


def opened(archive: bytes) -> list[tarfile.TarInfo]:
    with tarfile.open(fileobj=io.BytesIO(gzip.decompress(archive))) as tar:
        return tar.getmembers()


def test_tar_lists_directories_before_their_content() -> None:
    names = [member.name for member in opened(tar_gz(FILES, 7))]
    assert names == [".", "./etc", "./etc/one", "./usr", "./usr/bin", "./usr/bin/program", "./usr/link"]


def test_tar_members_are_owned_by_root_with_fixed_time() -> None:
    members = opened(tar_gz(FILES, 7))
    assert {(member.uid, member.gid, member.uname, member.gname, member.mtime) for member in members} == {
        (0, 0, "root", "root", 7)
    }


def test_tar_keeps_modes_and_symlinks() -> None:
    members = {member.name: member for member in opened(tar_gz(FILES, 7))}
    assert members["./usr/bin/program"].mode == 0o755
    assert members["./etc"].mode == 0o755
    assert members["./usr/link"].linkname == "bin"


def test_tar_does_not_depend_on_file_order() -> None:
    assert tar_gz(FILES, 7) == tar_gz(dict(reversed(FILES.items())), 7)


@pytest.mark.parametrize("content", [b"", b"odd", b"even"])
def test_ar_archive_round_trips_members(content: bytes) -> None:
    members = {"debian-binary": b"2.0\n", "one": content, "two": b"last"}
    assert ar_members(ar(members, 7)) == members


def test_control_file_is_read_from_package() -> None:
    control = tar_gz({"control": PackageEntry(b"Package: one\n"), "md5sums": PackageEntry(b"")}, 7)
    assert control_of(ar({"debian-binary": b"2.0\n", "control.tar.gz": control}, 7)) == "Package: one\n"


def test_file_that_is_not_a_debian_package_is_refused() -> None:
    with pytest.raises(ValueError, match="not a Debian package"):
        ar_members(b"<html>")


def test_read_tar_gz_returns_file_contents_by_path() -> None:
    assert read_tar_gz(tar_gz(FILES, 7)) == {"etc/one": b"1", "usr/bin/program": b"#!/bin/sh\n"}
