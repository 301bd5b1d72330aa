"""Tests of the repository's lists: hashes of all packages, and the apt source file."""

from __future__ import annotations

import gzip
import hashlib
from typing import TYPE_CHECKING

from deb.archive_formats import PackageEntry, ar, tar_gz
from deb.repository import apt_source, write_index

if TYPE_CHECKING:
    from pathlib import Path


def put(repository: Path, version: str, arch: str) -> bytes:
    control = tar_gz({"control": PackageEntry(f"Package: one\nVersion: {version}\n".encode())}, 7)
    content = ar({"debian-binary": b"2.0\n", "control.tar.gz": control}, 7)
    place = repository / f"pool/main/one_{version}_{arch}.deb"
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(content)
    return content


def test_packages_index_lists_all_versions_per_architecture(tmp_path: Path) -> None:
    put(tmp_path, "1", "amd64")
    newer = put(tmp_path, "2", "amd64")
    put(tmp_path, "2", "arm64")
    write_index(tmp_path, 0)
    listed = (tmp_path / "dists/stable/main/binary-amd64/Packages").read_text().strip().split("\n\n")
    assert [entry.splitlines()[1] for entry in listed] == ["Version: 1", "Version: 2"]
    assert f"Filename: pool/main/one_2_amd64.deb\nSize: {len(newer)}\n" in listed[1]
    assert f"SHA256: {hashlib.sha256(newer).hexdigest()}" in listed[1]


def test_release_file_has_hash_and_size_of_every_index(tmp_path: Path) -> None:
    put(tmp_path, "1", "amd64")
    write_index(tmp_path, 0)
    dists = tmp_path / "dists/stable"
    lines = (dists / "Release").read_text().partition("SHA256:\n")[2].splitlines()
    assert len(lines) == 4
    for digest, size, path in map(str.split, lines):
        content = (dists / path).read_bytes()
        assert (hashlib.sha256(content).hexdigest(), len(content)) == (digest, int(size))
    packed = (dists / "main/binary-amd64/Packages.gz").read_bytes()
    assert gzip.decompress(packed) == (dists / "main/binary-amd64/Packages").read_bytes()


def test_apt_source_embeds_signing_key() -> None:
    text = apt_source("https://example.test/apt", "-----BEGIN-----\n\nabc\n-----END-----\n")
    assert text.endswith("Signed-By:\n -----BEGIN-----\n .\n abc\n -----END-----\n")
    assert "URIs: https://example.test/apt\nSuites: stable\n" in text
