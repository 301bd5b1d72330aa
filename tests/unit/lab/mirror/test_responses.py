"""Tests of the mirror's responses, computed from headers and file facts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from aks_flex_lab.mirror.responses import (
    ByteRange,
    DamagedBody,
    FileFacts,
    RangeNotSatisfiable,
    TextBody,
    file_response,
    parse_range,
)
from aks_flex_lab.mirror.served_files import open_file, parse_target

if TYPE_CHECKING:
    from pathlib import Path

FACTS = FileFacts("kubelet", 1000, 1_700_000_000_500_000_000)


@pytest.mark.parametrize(
    ("header", "span"),
    [
        ("bytes=0-0", ByteRange(0, 1)),
        ("bytes=10-19", ByteRange(10, 10)),
        ("bytes=990-", ByteRange(990, 10)),
        ("bytes=990-5000", ByteRange(990, 10)),
        ("bytes=-10", ByteRange(990, 10)),
        ("bytes=-5000", ByteRange(0, 1000)),
        ("Bytes = 1 - 2", ByteRange(1, 2)),
        ("", None),
        ("bytes=-", None),
        ("bytes=5-4", None),
        ("bytes=0-1,3-4", None),
        ("lines=0-1", None),
        ("bytes=a-b", None),
    ],
)
def test_range_header_is_parsed_per_http_standard(header: str, span: ByteRange | None) -> None:
    assert parse_range(header, 1000) == span


@pytest.mark.parametrize("header", ["bytes=1000-", "bytes=1000-1001", "bytes=-0"])
def test_range_beyond_end_is_not_satisfiable(header: str) -> None:
    with pytest.raises(RangeNotSatisfiable):
        parse_range(header, 1000)


def test_empty_file_satisfies_no_range() -> None:
    assert file_response(FileFacts("x", 0, 0), {"range": "bytes=0-"}).status == 416
    assert file_response(FileFacts("x", 0, 0), {"range": "bytes=-5"}).status == 416
    assert file_response(FileFacts("x", 0, 0), {}).status == 200


@pytest.mark.parametrize(
    ("asked", "status"),
    [
        ({}, 200),
        ({"range": "bytes=0-9"}, 206),
        ({"range": "bytes=0-9", "if-range": FACTS.etag}, 206),
        ({"range": "bytes=0-9", "if-range": FACTS.last_modified}, 206),
        ({"range": "bytes=0-9", "if-range": '"other"'}, 200),
        ({"if-none-match": FACTS.etag}, 304),
        ({"if-none-match": f'"other", W/{FACTS.etag}'}, 304),
        ({"if-none-match": "*"}, 304),
        ({"if-none-match": '"other"', "if-modified-since": FACTS.last_modified}, 200),
        ({"if-modified-since": FACTS.last_modified}, 304),
        ({"if-modified-since": "Thu, 01 Jan 1970 00:00:00 GMT"}, 200),
        ({"if-modified-since": "yesterday"}, 200),
        ({"range": "bytes=1000-"}, 416),
    ],
)
def test_conditional_headers_determine_response_status(asked: dict[str, str], status: int) -> None:
    assert file_response(FACTS, asked).status == status


def test_partial_response_has_content_range_and_length() -> None:
    part = file_response(FACTS, {"range": "bytes=100-199"})
    assert (part.start, part.length) == (100, 100)
    assert part.headers["Content-Range"] == "bytes 100-199/1000"
    assert part.headers["Content-Length"] == "100"


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("kubelet", "application/octet-stream"),
        ("containerd-1.7.29-linux-amd64.tar.gz", "application/gzip"),
        ("cni.tgz", "application/gzip"),
        ("kubelet.sha256", "text/plain; charset=utf-8"),
    ],
)
def test_content_type_is_derived_from_file_name(name: str, kind: str) -> None:
    assert FileFacts(name, 1, 1).content_type == kind


@pytest.mark.parametrize(
    ("target", "host", "path"),
    [
        ("/a/b", "dl.k8s.io", "dl.k8s.io/a/b"),
        ("/a/b?c=d", "DL.K8S.IO:443", "dl.k8s.io/a/b"),
        ("/a%20b", "dl.k8s.io.", "dl.k8s.io/a b"),
        ("http://GitHub.com:80/a/b?c", "elsewhere", "github.com/a/b"),
        ("/a", "[::1]:443", "[::1]/a"),
    ],
)
def test_request_target_is_parsed_into_host_and_path(target: str, host: str, path: str) -> None:
    read = parse_target(target, host)
    assert read.path == path
    assert read.safe


@pytest.mark.parametrize("target", ["/", "", "/..", "/a/../b", "/a/./b", "/a//b", "/%2e%2e/b", "/a%2fb", "/a%00b"])
def test_path_that_could_escape_tree_is_unsafe(target: str) -> None:
    assert not parse_target(target, "dl.k8s.io").safe


def test_only_regular_files_below_tree_are_opened(tmp_path: Path) -> None:
    folder = tmp_path / "tree" / "host"
    folder.mkdir(parents=True)
    (folder / "file").write_text("right")
    (tmp_path / "secret").write_text("secret")
    (folder / "link").symlink_to(tmp_path / "secret")
    (folder / "inner").symlink_to("file")
    (tmp_path / "tree" / "alias").symlink_to("host")
    found = open_file(tmp_path / "tree", parse_target("/file", "host"))
    assert found is not None
    with found:
        assert found.read() == b"right"
    for path, host in (
        ("/link", "host"),
        ("/inner", "host"),
        ("/file", "alias"),
        ("/file/x", "host"),
        ("/no", "host"),
    ):
        assert open_file(tmp_path / "tree", parse_target(path, host)) is None


@pytest.mark.parametrize(("start", "length"), [(0, 1000), (100, 1), (100, 3), (0, 500)])
def test_injected_damage_falls_within_sent_range_and_keeps_length(start: int, length: int) -> None:
    sound = TextBody(bytes(1000))
    damaged = DamagedBody.in_middle(sound, start, length)
    view = memoryview(bytearray(1000))
    assert damaged.read_into(view, 0) == 1000
    wrong = [index for index, value in enumerate(view) if value]
    assert 0 < len(wrong) <= 64
    assert start <= wrong[0] <= wrong[-1] < start + length


def test_injected_damage_is_identical_for_chunked_and_whole_reads() -> None:
    damaged = DamagedBody.in_middle(TextBody(bytes(1000)), 0, 1000)
    whole, pieces = memoryview(bytearray(1000)), bytearray()
    damaged.read_into(whole, 0)
    for offset in range(0, 1000, 7):
        piece = memoryview(bytearray(7))
        pieces += piece[: damaged.read_into(piece, offset)]
    assert pieces == whole
