"""Finds the file of a request in the mirror's tree without following links, and falsifies checksum files."""

from __future__ import annotations

import errno
import io
import os
import re
import stat
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING
from urllib.parse import unquote

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path


NOT_FOUND_ERRNOS = {
    errno.ENOENT,
    errno.ENOTDIR,
    errno.ELOOP,
    errno.ENAMETOOLONG,
    errno.EACCES,
    errno.EISDIR,
    errno.ENXIO,
}
OPEN_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
OPEN_FILE = (
    os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
)  # non-blocking, because opening a FIFO would block


@dataclass(frozen=True)
class RequestTarget:
    """The host and path of a request."""

    host: str
    names: tuple[str, ...]

    @property
    def path(self) -> str:
        """The `host/path` that patterns match and that counts are stored by."""
        return "/".join((self.host, *self.names))

    @property
    def safe(self) -> bool:
        return bool(self.names) and not any(
            name in {"", ".", ".."} or "/" in name or "\0" in name for name in (self.host, *self.names)
        )


def parse_target(request_target: str, host_header: str) -> RequestTarget:
    """Returns the host without its port, and the decoded segments of the path."""
    path = request_target.partition("?")[0]
    if request_target.lower().startswith(("http://", "https://")):  # an absolute URL, as a client sends to a proxy
        host_header, _, path = path.partition("://")[2].partition("/")
    names = tuple(unquote(name, errors="surrogateescape") for name in path.removeprefix("/").split("/"))
    return RequestTarget(bare_host(host_header), names)


def bare_host(header: str) -> str:
    host = header.strip().lower()
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    return host.partition(":")[0].rstrip(".")


def served_hosts(root: Path) -> tuple[str, ...]:
    """Returns the host names that this mirror serves."""
    return tuple(sorted(entry.name for entry in root.iterdir() if entry.is_dir() and not entry.is_symlink()))


def open_file(root: Path, target: RequestTarget) -> io.FileIO | None:
    """Opens the requested regular file of the tree; returns None if it has none."""
    if not target.safe:
        return None
    try:
        return io.FileIO(open_below(root, (target.host, *target.names)), "r")
    except OSError as error:
        if error.errno not in NOT_FOUND_ERRNOS:
            raise
    return None


def open_below(root: Path, names: Sequence[str]) -> int:
    """Opens a path segment by segment, and returns the file descriptor of the last one."""
    here = os.open(root, OPEN_DIRECTORY & ~os.O_NOFOLLOW)
    try:
        for name in names[:-1]:
            below = os.open(name, OPEN_DIRECTORY, dir_fd=here)
            os.close(here)
            here = below
        found = os.open(names[-1], OPEN_FILE, dir_fd=here)
    finally:
        os.close(here)
    if not stat.S_ISREG(os.fstat(found).st_mode):
        os.close(found)
        raise FileNotFoundError(errno.ENOENT, "not a regular file", names[-1])
    return found


CHECKSUM_SUFFIXES = (".sha256", ".sha512", ".sha256sum", ".sha512sum")
CHECKSUM_LINE = re.compile(rb"[ \t]*([0-9a-fA-F]{32,128})(?:[ \t]+\*?(\S+))?[ \t]*")
NEXT_DIGIT = bytes.maketrans(b"0123456789abcdefABCDEF", b"123456789abcdef0BCDEF0")


def is_checksum(path: str) -> bool:
    return path.endswith(CHECKSUM_SUFFIXES)


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
