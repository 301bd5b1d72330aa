"""Malicious archives: unpacked inside their tree or rejected, with limited memory."""

from __future__ import annotations

import gzip
import io
import os
import tarfile
import tempfile
import tracemalloc
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aks_flex_node.errors import ArtifactError
from tests.fuzz.attempts import tried
from tests.fuzz.mutations import damaged
from tests.unit.agent.artifacts.test_unpack import Item, packed, refused, unpacked

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

REFUSALS = {"archive-corrupt", "archive-unsafe", "archive-incomplete"}
NAMES = (
    "a",
    "a/b",
    "./a",
    "a//b",
    "..",
    "../out",
    "/out",
    "a/../../out",
    "b/../a",
    ".",
    "",
    "a\nb",
    "\udcff",
    "x" * 300,
)
KINDS = (
    *(tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE),
    *(tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.CONTTYPE, tarfile.GNUTYPE_SPARSE, b"Z"),
)
MOST_MEMORY = 32 << 20
SOUND = packed(
    Item("bin/tool", b"tool" * 500),
    Item("bin/link", kind=tarfile.SYMTYPE, target="tool"),
    Item("bin/other", kind=tarfile.LNKTYPE, target="bin/tool"),
    Item("share", kind=tarfile.DIRTYPE),
    Item(f"share/{'long/' * 40}name", b"x"),
)


def check_unpack(content: bytes) -> None:
    """Unpacks an archive next to a file that it must not change."""
    with tempfile.TemporaryDirectory() as folder:
        room, outside = Path(folder) / "room", Path(folder) / "outside"
        room.mkdir()
        outside.write_text("untouched")
        found = tried(lambda: unpacked(room, content), ArtifactError)
        for path, _, files in os.walk(room / "tree"):
            for name in files:
                assert_inside(Path(path) / name, room / "tree")
        if isinstance(found, ArtifactError):
            assert found.name in REFUSALS, found
        else:
            assert all(os.path.lexists(room / "tree" / path) for path in found)
        assert outside.read_text() == "untouched"
        assert names_in(room) == ["archive.tar.gz", "tree"]
        assert names_in(Path(folder)) == ["outside", "room"]


def names_in(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir())


def assert_inside(path: Path, tree: Path) -> None:
    """Checks that a path is a file or a link that resolves inside the tree."""
    assert path.is_symlink() or path.is_file()
    assert Path(os.path.realpath(path)).is_relative_to(os.path.realpath(tree))  # a link loop is allowed


def items() -> SearchStrategy[list[Item]]:
    names = st.sampled_from(NAMES) | st.text(max_size=12)
    item = st.builds(Item, names, st.binary(max_size=40), st.sampled_from(KINDS), names, st.integers(0, 0o7777))
    return st.lists(item, max_size=6)


@given(items(), st.sampled_from((tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)))
def test_archive_is_unpacked_inside_target_directory_or_refused(made: list[Item], form: int) -> None:
    try:
        content = packed(*made, form=form)
    except (ValueError, UnicodeError):
        return  # cannot be packed
    check_unpack(content)


@given(damaged(SOUND))
def test_damaged_archive_is_unpacked_inside_target_or_refused(content: bytes) -> None:
    check_unpack(content)


@given(damaged(gzip.decompress(SOUND), most=6))
def test_tar_with_damaged_headers_is_unpacked_inside_target_or_refused(content: bytes) -> None:
    check_unpack(content)
    check_unpack(gzip.compress(content, 1))


@given(st.integers(0, len(SOUND) - 1))
def test_truncated_archive_is_refused(length: int) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.raises(ArtifactError) as caught:
        unpacked(Path(folder), SOUND[:length])
    assert caught.value.name in REFUSALS


def with_size(size: int) -> bytes:
    info = tarfile.TarInfo("huge")
    info.size = size
    return info.tobuf(tarfile.GNU_FORMAT) + b"x" * 512


@pytest.mark.parametrize("size", [1 << 33, 1 << 62, (1 << 63) - 1])
def test_archive_entry_with_huge_declared_size_is_refused(tmp_path: Path, size: int) -> None:
    assert refused(tmp_path, gzip.compress(with_size(size))).name == "archive-corrupt"
    assert refused(tmp_path / "tree", with_size(size)).name == "archive-corrupt"


def test_archive_path_exceeding_system_limit_is_refused(tmp_path: Path) -> None:
    assert "invalid file name" in refused(tmp_path, packed(Item("a/" * 3000 + "b", b"x"))).message


def test_archive_with_too_deep_directory_tree_is_refused(tmp_path: Path) -> None:
    assert "invalid file name" in refused(tmp_path, packed(Item("a/" * 101 + "b", b"x"))).message


@pytest.mark.parametrize("target", ["b/" * 3000, "", "."])
def test_archive_link_with_invalid_target_is_refused(tmp_path: Path, target: str) -> None:
    content = packed(Item("link", kind=tarfile.SYMTYPE, target=target))
    assert "not a valid link target" in refused(tmp_path, content).message


def test_archive_with_thousands_of_nested_headers_is_refused(tmp_path: Path) -> None:
    header = tarfile.TarInfo("x")
    header.type, header.size = tarfile.XHDTYPE, 11
    one = header.tobuf(tarfile.USTAR_FORMAT) + b"11 path=ab\n".ljust(512, b"\0")

    assert refused(tmp_path, gzip.compress(one * 5000)).name == "archive-unsafe"


def sparse(pieces: int) -> bytes:
    """Returns a pax sparse file with a map of any length."""
    info = tarfile.TarInfo("sparse")
    told = {"major": "1", "minor": "0", "name": "sparse", "realsize": "5"}
    info.pax_headers = {f"GNU.sparse.{name}": value for name, value in told.items()}
    body = f"{pieces}\n".encode() + b"1\n" * (2 * pieces)
    info.size = len(body)
    return info.tobuf(tarfile.PAX_FORMAT) + body.ljust(-(-len(body) // 512) * 512, b"\0")


def test_sparse_file_with_oversized_map_is_refused(tmp_path: Path) -> None:
    assert "has a header of more than" in refused(tmp_path, gzip.compress(sparse(400_000), 1)).message


@pytest.mark.parametrize("byte", [b"x", b"\0"])
def test_decompression_bomb_is_refused_with_bounded_memory(tmp_path: Path, byte: bytes) -> None:
    content = gzip.compress(byte * (60 << 20), 9)
    tracemalloc.start()
    try:
        assert refused(tmp_path, content).name in REFUSALS
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < MOST_MEMORY


def test_archive_created_by_python_tarfile_is_unpacked(tmp_path: Path) -> None:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        tar.add(Path(__file__), "this.py")
    assert list(unpacked(tmp_path, made.getvalue())) == ["this.py"]
