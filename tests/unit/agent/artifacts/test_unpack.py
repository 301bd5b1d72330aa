"""Tests of unpacking: wanted members are extracted, malicious archives are rejected with a named error."""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from aks_flex_node.agent.artifacts.cache import VerifiedFile
from aks_flex_node.agent.artifacts.digest import Digest
from aks_flex_node.agent.artifacts.model import Artifact, ArtifactFile, StagedFile
from aks_flex_node.agent.artifacts.unpack import unpack
from aks_flex_node.errors import ArtifactError

if TYPE_CHECKING:
    from pathlib import Path

EVERYTHING = (ArtifactFile("./", "./"),)


@dataclass(frozen=True)
class Item:
    """An archive member."""

    name: str
    content: bytes = b""
    kind: bytes = tarfile.REGTYPE
    target: str = ""
    mode: int = 0o755


def packed(*items: Item, form: int = tarfile.PAX_FORMAT) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz", format=form, compresslevel=1) as tar:
        for item in items:
            info = tarfile.TarInfo(item.name)
            info.size, info.type, info.linkname, info.mode = len(item.content), item.kind, item.target, item.mode
            tar.addfile(info, io.BytesIO(item.content))
    return made.getvalue()


def unpacked(room: Path, content: bytes, wanted: tuple[ArtifactFile, ...] = EVERYTHING) -> dict[str, StagedFile]:
    (room / "archive.tar.gz").write_bytes(content)
    blob = VerifiedFile(room / "archive.tar.gz", len(content), Digest("sha256", ""), "")
    (room / "tree").mkdir(exist_ok=True)
    artifact = Artifact("tool", "1.0", "https://publisher.example/archive.tar.gz", wanted)
    return unpack(artifact, blob, room / "tree", lambda: None)


def refused(room: Path, content: bytes, wanted: tuple[ArtifactFile, ...] = EVERYTHING) -> ArtifactError:
    with pytest.raises(ArtifactError) as caught:
        unpacked(room, content, wanted)
    assert "https://publisher.example/archive.tar.gz" in caught.value.message
    return caught.value


def test_unpack_stages_a_member_with_target_path_mode_and_hash(tmp_path: Path) -> None:
    content = packed(Item("./bin/tool", b"tool", mode=0o644), Item("README", b"read me"))
    staged = unpacked(tmp_path, content, (ArtifactFile("bin/tool", "sbin/renamed", 0o700),))
    assert staged == {"sbin/renamed": StagedFile(hashlib.sha256(b"tool").hexdigest(), 4, 0o700)}
    assert (tmp_path / "tree/sbin/renamed").read_bytes() == b"tool"
    assert (tmp_path / "tree/sbin/renamed").stat().st_mode & 0o7777 == 0o700
    assert [path.name for path in (tmp_path / "tree").rglob("*")] == ["sbin", "renamed"]


def test_unpack_prefix_selects_only_members_below_the_directory(tmp_path: Path) -> None:
    content = packed(
        Item("bin", kind=tarfile.DIRTYPE), Item("bin/a", b"a"), Item("bin/deep/b", b"b"), Item("binary", b"c")
    )
    assert sorted(unpacked(tmp_path, content, (ArtifactFile("bin/", "opt/"),))) == ["opt/a", "opt/deep/b"]


def test_unpack_exact_name_takes_precedence_over_a_prefix(tmp_path: Path) -> None:
    content = packed(Item("bin/a", b"a"), Item("bin/b", b"b"))
    wanted = (ArtifactFile("bin/", "all/"), ArtifactFile("bin/b", "special"))
    assert sorted(unpacked(tmp_path, content, wanted)) == ["all/a", "special"]


def test_unpack_prefix_keeps_execute_bit_and_drops_setuid(tmp_path: Path) -> None:
    content = packed(Item("tool", b"x", mode=0o6777), Item("config.json", b"{}", mode=0o666))
    staged = unpacked(tmp_path, content)
    assert {path: file.mode for path, file in staged.items()} == {"tool": 0o755, "config.json": 0o644}
    assert (tmp_path / "tree/tool").stat().st_mode & 0o7777 == 0o755


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_unpack_reads_every_tar_format(tmp_path: Path, form: int) -> None:
    name = f"{'long/' * 20}name" if form == tarfile.USTAR_FORMAT else f"{'long/' * 60}name"
    assert list(unpacked(tmp_path, packed(Item(name, b"x" * 1000), Item("next", b"y"), form=form))) == [name, "next"]


def test_unpack_reads_plain_tar_and_concatenated_gzip(tmp_path: Path) -> None:
    plain = gzip.decompress(packed(Item("a", b"a" * 5000)))
    assert list(unpacked(tmp_path, plain)) == ["a"]
    (tmp_path / "tree/a").unlink()
    pieces = gzip.compress(plain[:700]) + gzip.compress(plain[700:]) + b"\0" * 512
    assert list(unpacked(tmp_path, pieces)) == ["a"]


def test_unpack_keeps_links_that_point_inside_the_tree(tmp_path: Path) -> None:
    content = packed(
        Item("lib/tool-1", b"tool"),
        Item("lib/tool", kind=tarfile.SYMTYPE, target="tool-1"),
        Item("bin/tool", kind=tarfile.SYMTYPE, target="../lib/tool"),
        Item("bin/same", kind=tarfile.LNKTYPE, target="lib/tool-1"),
    )
    staged = unpacked(tmp_path, content)
    assert staged["bin/tool"] == StagedFile("", 0, 0, "../lib/tool")
    assert staged["bin/same"] == staged["lib/tool-1"]
    assert (tmp_path / "tree/bin/tool").read_bytes() == (tmp_path / "tree/bin/same").read_bytes() == b"tool"


HOSTILE = {
    "an absolute name": (Item("/etc/passwd", b"x"),),
    "a name that climbs": (Item("bin/../../etc/passwd", b"x"),),
    "a control character": (Item("bin/\x1b[2J", b"x"),),
    "a very long name": (Item("x" * 300, b"x"),),
    "an absolute link": (Item("link", kind=tarfile.SYMTYPE, target="/etc/passwd"),),
    "a link that climbs out": (Item("bin/link", kind=tarfile.SYMTYPE, target="../../etc"),),
    "a link that climbs later": (Item("bin/link", kind=tarfile.SYMTYPE, target="sub/../../../etc"),),
    "a hard link out": (Item("link", kind=tarfile.LNKTYPE, target="../../etc/shadow"),),
    "an absolute hard link": (Item("link", kind=tarfile.LNKTYPE, target="/etc/shadow"),),
    "a hard link to what is not there": (Item("link", kind=tarfile.LNKTYPE, target="nothing"),),
    "a hard link to a link": (
        Item("a", kind=tarfile.SYMTYPE, target="b"),
        Item("c", kind=tarfile.LNKTYPE, target="a"),
    ),
    "a file through a link": (Item("d", kind=tarfile.SYMTYPE, target="e"), Item("d/file", b"x")),
    "a file below a file": (Item("d", b"x"), Item("d/file", b"x")),
    "a character device": (Item("null", kind=tarfile.CHRTYPE),),
    "a block device": (Item("disk", kind=tarfile.BLKTYPE),),
    "a pipe": (Item("pipe", kind=tarfile.FIFOTYPE),),
    "an unknown type": (Item("odd", kind=b"Z"),),
    "the same twice": (Item("tool", b"good"), Item("./tool", b"evil")),
    "a link in a file's place": (Item("tool", b"good"), Item("tool", kind=tarfile.SYMTYPE, target="x")),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_unpack_refuses_a_hostile_archive(tmp_path: Path, case: str) -> None:
    (tmp_path / "room").mkdir()
    assert refused(tmp_path / "room", packed(Item("honest", b"x"), *HOSTILE[case])).name == "archive-unsafe"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["room"]


@pytest.mark.parametrize("case", HOSTILE)
def test_unpack_refuses_hostile_archive_when_bad_member_is_not_selected(tmp_path: Path, case: str) -> None:
    content = packed(Item("honest", b"x"), *HOSTILE[case])
    assert refused(tmp_path, content, (ArtifactFile("honest", "honest"),)).name == "archive-unsafe"


def test_hostile_archive_error_names_the_member(tmp_path: Path) -> None:
    message = refused(tmp_path, packed(Item("bin/../../etc/passwd", b"x"))).message
    assert "'bin/../../etc/passwd'" in message


def test_unpack_refuses_a_decompression_bomb(tmp_path: Path) -> None:
    error = refused(tmp_path, packed(Item("zeros", bytes(80 << 20))))
    assert error.name == "archive-unsafe"
    assert "bomb" in error.message


def test_unpack_refuses_header_that_claims_gigabytes(tmp_path: Path) -> None:
    info = tarfile.TarInfo("pax")
    info.type, info.size = tarfile.XHDTYPE, 3 << 30
    assert refused(tmp_path, gzip.compress(info.tobuf())).name == "archive-unsafe"


def test_unpack_names_selected_members_that_are_missing(tmp_path: Path) -> None:
    error = refused(
        tmp_path, packed(Item("a", b"x")), (ArtifactFile("a", "a"), ArtifactFile("b", "b"), ArtifactFile("c/", "c/"))
    )
    assert error.name == "archive-incomplete"
    assert "b, c/" in error.message


SOUND = packed(Item("tool", bytes(range(256)) * 400))


@pytest.mark.parametrize(
    "content",
    [
        b"\x1f\x8b",
        b"<html>not found</html>" * 100,
        SOUND[: len(SOUND) // 2],
        SOUND[:-4],
        SOUND[:-6] + b"??????",
        gzip.compress(b"not a tar" * 100),
        gzip.compress(gzip.decompress(SOUND)[:5000]),
        SOUND + b"rubbish",
    ],
    ids=[
        "only magic",
        "html",
        "half",
        "no trailer",
        "wrong trailer",
        "no tar",
        "half a tar",
        "rubbish after",
    ],
)
def test_unpack_reports_a_broken_archive(tmp_path: Path, content: bytes) -> None:
    assert refused(tmp_path, content).name == "archive-corrupt"


@pytest.mark.parametrize(
    ("items", "selected", "name"),
    [
        (
            (Item("other/file", b"x"), Item("bin/link", kind=tarfile.SYMTYPE, target="../other/file")),
            {"bin/": "bin/"},
            "archive-unsafe",
        ),
        ((Item("tool", kind=tarfile.SYMTYPE, target="other"),), {"tool": "tool"}, "archive-incomplete"),
        ((Item("a/tool", b"1"), Item("b/tool", b"2")), {"a/": "bin/", "b/": "bin/"}, "archive-unsafe"),
    ],
    ids=["link to a member that is not selected", "link as a selected file", "two members with one target"],
)
def test_unpack_refuses_a_selection_that_is_not_exact(
    tmp_path: Path, items: tuple[Item, ...], selected: dict[str, str], name: str
) -> None:
    wanted = tuple(ArtifactFile(*each) for each in selected.items())
    assert refused(tmp_path, packed(*items), wanted).name == name
