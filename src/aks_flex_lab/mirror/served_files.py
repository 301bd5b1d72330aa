"""Finds the file of a request in the mirror's tree without following links, and falsifies checksum files."""

from __future__ import annotations

import os
import re
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

if TYPE_CHECKING:
    import io
    from collections.abc import Iterator


def requested_path(target: str, host_header: str) -> str:
    """Returns the `host/path` of a request, that patterns match: the host without its port, the path decoded."""
    path = target.partition("?")[0]
    if path.lower().startswith(("http://", "https://")):  # an absolute URL, as a client sends to a proxy
        host_header, _, path = path.partition("://")[2].partition("/")
    host = host_header.strip().lower().partition(":")[0]
    return f"{host}/{unquote(path.removeprefix('/'), errors='surrogateescape')}"


def open_file(root: Path, path: str) -> io.FileIO | None:
    """Opens a regular file of the tree; None if it has none, or if a link or a dot is on the way."""
    file = f"{root}/{path}"
    if "\0" in path or os.path.realpath(file) != file or not Path(file).is_file():
        return None
    return Path(file).open("rb", buffering=0)


CHECKSUM_SUFFIXES = (".sha256", ".sha512", ".sha256sum", ".sha512sum")
CHECKSUM_LINE = re.compile(rb"[ \t]*([0-9a-fA-F]{32,128})(?:[ \t]+\*?(\S+))?[ \t]*")
NEXT_DIGIT = bytes.maketrans(b"0123456789abcdefABCDEF", b"123456789abcdef0BCDEF0")


def checksum_subjects(path: str, content: bytes) -> tuple[str, ...]:
    """Returns the paths of the checksum file, of the file that it is named after, and of the files that it lists."""
    return (path, artifact_path(path), *(name for _, name in checksum_lines(path, content) if name))


def falsify_checksums(path: str, content: bytes, glob: str) -> bytes:
    """Returns the text with wrong checksums, in every line or only for files that match the pattern."""
    whole = fnmatchcase(path, glob) or fnmatchcase(artifact_path(path), glob)
    return b"".join(
        wrong_digits(line) if whole or (name and fnmatchcase(name, glob)) else line
        for line, name in checksum_lines(path, content)
    )


def artifact_path(path: str) -> str:
    return next((path.removesuffix(suffix) for suffix in CHECKSUM_SUFFIXES if path.endswith(suffix)), path)


def checksum_lines(path: str, content: bytes) -> Iterator[tuple[bytes, str]]:
    """Yields every line with its line end, and the path of the file that it lists, if any."""
    folder = path.rpartition("/")[0]
    for line in content.splitlines(keepends=True):
        match = CHECKSUM_LINE.fullmatch(line.rstrip(b"\r\n"))
        name = match[2].decode("utf-8", "replace") if match and match[2] else ""
        yield line, f"{folder}/{name.removeprefix('./')}" if name else ""


def wrong_digits(line: bytes) -> bytes:
    match = CHECKSUM_LINE.fullmatch(line.rstrip(b"\r\n"))
    if not match:
        return line
    start, end = match.span(1)
    return line[:start] + line[start:end].translate(NEXT_DIGIT) + line[end:]
