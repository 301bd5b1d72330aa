"""Tests of release downloads: failures, incomplete files and wrong checksums."""

from __future__ import annotations

import hashlib
import io
import tarfile
import time
from typing import TYPE_CHECKING

import pytest

from aks_flex_lab.errors import ToolError
from aks_flex_lab.tools import catalog, releases
from aks_flex_lab.tools.recipes import Checksum, ReleaseFile
from aks_flex_lab.tools.releases import ReleaseDownloader, published_hash, unpack
from tests.unit.lab.tools.fakes import FakeTransport

if TYPE_CHECKING:
    from pathlib import Path

CONTENT = bytes(range(256)) * 1000
URL = "publisher.example/v1/program"
FILE = ReleaseFile(URL, (Checksum(f"{URL}.sha256", named=False),), ("program",))
TOOL = next(tool for tool in catalog.TOOLS if tool.name == "pause")


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def web(content: bytes = CONTENT, published: bytes = CONTENT) -> FakeTransport:
    return FakeTransport({URL: content, f"{URL}.sha256": sha256(published).encode()})


def publishers(fake: FakeTransport) -> ReleaseDownloader:
    return ReleaseDownloader(fake, seconds=0.2, pause=0)


def test_unreachable_host_is_requested_only_once() -> None:
    fake = FakeTransport()
    asking = publishers(fake)
    assert not asking.reachable((FILE, FILE))
    assert not asking.reachable((FILE,))
    assert len(fake.asked) == 1


def test_login_page_does_not_count_as_reachable_publisher() -> None:
    fake = FakeTransport({URL: b"<html>", f"{URL}.sha256": b"<html>Please log in</html>"})
    assert not publishers(fake).reachable((FILE,))


def test_reachability_check_of_unresponsive_network_times_out() -> None:
    fake = FakeTransport(silent=True)
    start = time.monotonic()
    assert not publishers(fake).reachable((FILE,))
    assert time.monotonic() - start < 30  # the server never responds
    fake.over.set()


def test_interrupted_download_resumes_at_last_byte(tmp_path: Path) -> None:
    fake = web()
    fake.cuts = [100_000, 50_000]
    path = publishers(fake).fetch(TOOL, FILE, tmp_path)
    assert path.read_bytes() == CONTENT
    assert [start for url, start in fake.asked if url == URL] == [0, 100_000, 150_000]


def test_wrong_checksum_is_refused_and_file_is_deleted(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match=f"{URL} was rejected") as refused:
        publishers(web(content=b"other bytes")).fetch(TOOL, FILE, tmp_path)
    assert refused.value.name == "tool-checksum-mismatch"
    assert sha256(CONTENT) in refused.value.message
    assert list(tmp_path.iterdir()) == []


def test_pinned_hash_overrides_publisher_checksum(tmp_path: Path) -> None:
    pinned = ReleaseDownloader(web(), seconds=0.2, pause=0, pins={URL: "0" * 64})
    with pytest.raises(ToolError, match="expected 0000"):
        pinned.fetch(TOOL, FILE, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_every_pinned_hash_is_of_a_file_in_the_catalog() -> None:
    known = {file.url for tool in catalog.TOOLS for arch in ("amd64", "arm64") for file in tool.release_for(arch)}
    assert set(releases.PINNED_SHA256) <= known
    assert all(len(value) == 64 for value in releases.PINNED_SHA256.values())


def test_download_fails_after_repeated_interruptions(tmp_path: Path) -> None:
    fake = web()
    fake.cuts = [100, 100, 100, 100, 100]
    with pytest.raises(ToolError, match="400 of 256000 bytes"):
        publishers(fake).fetch(TOOL, FILE, tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        "{hash}",
        "{hash}\n",
        "{other}  runc.arm64\n{hash}  program\n",
        "{hash} *program\n",
        "{hash}  ./release/program\n",
    ],
)
def test_checksum_files_are_parsed_in_all_publisher_formats(text: str) -> None:
    line = text.format(hash="a" * 64, other="b" * 64)
    assert published_hash(line, FILE, FILE.checksums[0]) == "a" * 64


@pytest.mark.parametrize("text", ["", "a" * 63, "a" * 128, f"{'a' * 64}  another-program"])
def test_checksum_file_without_entry_for_file_is_refused(text: str) -> None:
    with pytest.raises(ToolError, match="does not contain program"):
        published_hash(text, FILE, FILE.checksums[0])


def tarball(path: Path, names: list[str]) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name in names:
            info = tarfile.TarInfo(name)
            info.size, info.mode = 4, 0o755
            archive.addfile(info, io.BytesIO(b"text"))
    return path


ARCHIVE = ReleaseFile("publisher.example/a.tgz", (), ("one", "two"), inside="bin", folders=("config",))


def test_unpack_extracts_only_listed_commands_and_folders(tmp_path: Path) -> None:
    names = ["./bin/one", "bin/two", "bin/three", "config/deep/a.json", "config/../../escape", "README"]
    into = tmp_path / "into"
    unpack(TOOL, ARCHIVE, tarball(tmp_path / "a.tgz", names), into)
    found = sorted(str(path.relative_to(into)) for path in into.rglob("*") if path.is_file())
    assert found == ["config/deep/a.json", "one", "two"]
    assert not (tmp_path / "escape").exists()
    assert (into / "one").stat().st_mode & 0o777 == 0o755


def test_archive_without_expected_command_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match=r"lacks bin/two"):
        unpack(TOOL, ARCHIVE, tarball(tmp_path / "a.tgz", ["bin/one"]), tmp_path)
