"""Tests of the mirror's responses: byte ranges, and damage that only a checksum detects."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from aks_flex_lab.mirror.responses import damaged, file_response

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("asked", "status", "sent"),
    [
        ("", 200, (0, 1000)),
        ("bytes=10-19", 206, (10, 10)),
        ("bytes=990-", 206, (990, 10)),
        ("bytes=990-5000", 206, (990, 10)),
        ("bytes=0-1,3-4", 200, (0, 1000)),
        ("bytes=1000-", 416, (0, 0)),
    ],
)
def test_range_is_sent_or_the_whole_file(tmp_path: Path, asked: str, status: int, sent: tuple[int, int]) -> None:
    (tmp_path / "f").write_bytes(bytes(1000))
    reply = file_response((tmp_path / "f").stat(), asked)
    assert (reply.status, (reply.start, reply.length)) == (status, sent)


def test_range_of_a_changed_file_is_the_whole_file(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(bytes(1000))
    facts = (tmp_path / "f").stat()
    etag = file_response(facts).headers["ETag"]
    assert [file_response(facts, "bytes=1-2", each).status for each in (etag, '"other"')] == [206, 200]


@pytest.mark.parametrize(("start", "length"), [(0, 1000), (100, 1), (100, 3)])
def test_damage_is_in_the_sent_range_also_when_sent_in_pieces(start: int, length: int) -> None:
    read = damaged(lambda offset, count: bytes(1000)[offset : offset + count], start, length)
    whole = read(0, 1000)
    assert b"".join(read(offset, 7) for offset in range(0, 1000, 7)) == whole
    wrong = [index for index, value in enumerate(whole) if value]
    assert 0 < len(wrong) <= 64
    assert start <= wrong[0] <= wrong[-1] < start + length
