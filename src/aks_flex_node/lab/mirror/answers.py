"""Status, headers and byte range of an answer, from the request's headers and the file's facts alone (RFC 9110)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timezone
from email.utils import formatdate, parsedate_to_datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

RANGE = re.compile(r"bytes\s*=\s*(\d*)\s*-\s*(\d*)\s*", re.IGNORECASE)
TYPES = {
    (".tar.gz", ".tgz", ".gz"): "application/gzip",
    (".sha256", ".sha512", ".sha256sum", ".sha512sum", ".txt"): "text/plain; charset=utf-8",
    (".json",): "application/json",
    (".yaml", ".yml"): "application/yaml",
    (".deb",): "application/vnd.debian.binary-package",
    (".zip",): "application/zip",
}


@dataclass(frozen=True)
class Facts:
    """What is known of a file before it is read."""

    name: str
    size: int
    changed_ns: int

    @classmethod
    def of(cls, name: str, status: os.stat_result) -> Facts:
        return cls(name, status.st_size, status.st_mtime_ns)

    @property
    def etag(self) -> str:
        return f'"{self.changed_ns:x}-{self.size:x}"'

    @property
    def last_modified(self) -> str:
        return formatdate(self.changed_ns // 1_000_000_000, usegmt=True)

    @property
    def content_type(self) -> str:
        return next(
            (kind for suffixes, kind in TYPES.items() if self.name.endswith(suffixes)), "application/octet-stream"
        )


@dataclass(frozen=True)
class Answer:
    """What will be sent: `length` bytes of the file from `start` on."""

    status: int
    headers: Mapping[str, str]
    start: int = 0
    length: int = 0


@dataclass(frozen=True)
class Span:
    start: int
    length: int


class Unsatisfiable(Exception):  # noqa: N818 - RFC 9110's word for it
    """The range begins after the end of the file."""


def answer(facts: Facts, asked: Mapping[str, str]) -> Answer:
    """200, 206, 304 or 416, from the request's headers, their names in lower case."""
    validators = {"ETag": facts.etag, "Last-Modified": facts.last_modified}
    if is_current(facts, asked):
        return Answer(304, validators)
    try:
        span = read_range(asked.get("range", ""), facts.size) if may_resume(facts, asked) else None
    except Unsatisfiable:
        return Answer(416, {"Content-Range": f"bytes */{facts.size}", "Content-Length": "0"})
    headers = {**validators, "Accept-Ranges": "bytes", "Content-Type": facts.content_type}
    if span is None:
        return Answer(200, {**headers, "Content-Length": str(facts.size)}, 0, facts.size)
    last = span.start + span.length - 1
    headers["Content-Range"] = f"bytes {span.start}-{last}/{facts.size}"
    return Answer(206, {**headers, "Content-Length": str(span.length)}, span.start, span.length)


def read_range(header: str, size: int) -> Span | None:
    """The one range asked for; None, which means the whole, for several ranges or none that can be read."""
    match = RANGE.fullmatch(header.strip())
    if not match or not (match[1] or match[2]):
        return None
    if not match[1]:
        length = min(int(match[2]), size)
        if length == 0:
            raise Unsatisfiable
        return Span(size - length, length)
    start = int(match[1])
    last = min(int(match[2]), size - 1) if match[2] else size - 1
    if match[2] and int(match[2]) < start:
        return None
    if start >= size:
        raise Unsatisfiable
    return Span(start, last - start + 1)


def is_current(facts: Facts, asked: Mapping[str, str]) -> bool:
    """Whether the client's copy is still good. An entity tag is asked before a date."""
    tags = asked.get("if-none-match")
    if tags is not None:
        known = {tag.strip().removeprefix("W/") for tag in tags.split(",")}
        return "*" in known or facts.etag in known
    since = read_date(asked.get("if-modified-since", ""))
    return since is not None and facts.changed_ns // 1_000_000_000 <= since.timestamp()


def may_resume(facts: Facts, asked: Mapping[str, str]) -> bool:
    """With If-Range, a range is answered only when the file is the one the client began with."""
    condition = asked.get("if-range")
    return condition is None or condition.strip() in {facts.etag, facts.last_modified}


def read_date(text: str) -> datetime | None:
    try:
        date = parsedate_to_datetime(text)
    except (TypeError, ValueError):
        return None
    return date if date.tzinfo else date.replace(tzinfo=timezone.utc)
