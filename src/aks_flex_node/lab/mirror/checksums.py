"""Checksum files: which artifacts one speaks of, and how to make it lie without changing its shape.

Publishers use three shapes: `NAME.sha256` holding a bare sum, `NAME.sha256sum` holding `SUM  NAME`, and one file such
as `runc.sha256sum` with a line for every artifact beside it.
"""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

SUFFIXES = (".sha256", ".sha512", ".sha256sum", ".sha512sum")
LINE = re.compile(rb"[ \t]*([0-9a-fA-F]{32,128})(?:[ \t]+\*?(\S+))?[ \t]*")
NEXT_DIGIT = bytes.maketrans(b"0123456789abcdefABCDEF", b"123456789abcdef0BCDEF0")


def is_checksum(path: str) -> bool:
    return path.endswith(SUFFIXES)


def subjects(path: str, content: bytes) -> tuple[str, ...]:
    """The checksum file itself, the file it is named after, and the files it names."""
    return (path, stem(path), *(name for _, name in lines(path, content) if name))


def falsify(path: str, content: bytes, glob: str) -> bytes:
    """The same text with other digits: in every line, or just for the files the pattern covers."""
    whole = fnmatchcase(path, glob) or fnmatchcase(stem(path), glob)
    return b"".join(
        wrong_digits(line) if whole or (name and fnmatchcase(name, glob)) else line
        for line, name in lines(path, content)
    )


def stem(path: str) -> str:
    return next((path.removesuffix(suffix) for suffix in SUFFIXES if path.endswith(suffix)), path)


def lines(path: str, content: bytes) -> Iterator[tuple[bytes, str]]:
    """Every line with its line end, and the path of the file that it names, if any."""
    folder = path.rpartition("/")[0]
    for line in content.splitlines(keepends=True):
        match = LINE.fullmatch(line.rstrip(b"\r\n"))
        name = match[2].decode("utf-8", "replace") if match and match[2] else ""
        yield line, f"{folder}/{name.removeprefix('./')}" if name else ""


def wrong_digits(line: bytes) -> bytes:
    match = LINE.fullmatch(line.rstrip(b"\r\n"))
    if not match:
        return line
    start, end = match.span(1)
    return line[:start] + line[start:end].translate(NEXT_DIGIT) + line[end:]
