"""From a request to a file, with no way out of the tree.

Each name of the path is opened below the one before it and never through a symbolic link, so neither `..` nor a link
that points elsewhere can lead outside; the tree is made of hard links and does not need any other.
"""

from __future__ import annotations

import errno
import io
import os
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import unquote

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

NOT_HERE = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.EACCES, errno.EISDIR, errno.ENXIO}
STEP = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # non-blocking: a FIFO must not hold us


@dataclass(frozen=True)
class Target:
    """What was asked for."""

    host: str
    names: tuple[str, ...]

    @property
    def path(self) -> str:
        """What patterns are matched against and counters are kept under."""
        return "/".join((self.host, *self.names))

    @property
    def safe(self) -> bool:
        return bool(self.names) and not any(
            name in {"", ".", ".."} or "/" in name or "\0" in name for name in (self.host, *self.names)
        )


def read_target(request_target: str, host_header: str) -> Target:
    """The host without its port, and the decoded names of the path."""
    path = request_target.partition("?")[0]
    if request_target.lower().startswith(("http://", "https://")):  # as a client writes it for a proxy
        host_header, _, path = path.partition("://")[2].partition("/")
    names = tuple(unquote(name, errors="surrogateescape") for name in path.removeprefix("/").split("/"))
    return Target(bare_host(host_header), names)


def bare_host(header: str) -> str:
    host = header.strip().lower()
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    return host.partition(":")[0].rstrip(".")


def hosts(root: Path) -> tuple[str, ...]:
    """The names this mirror answers to."""
    return tuple(sorted(entry.name for entry in root.iterdir() if entry.is_dir() and not entry.is_symlink()))


def open_file(root: Path, target: Target) -> io.FileIO | None:
    """The regular file that was asked for, or None."""
    if not target.safe:
        return None
    try:
        return io.FileIO(descend(root, (target.host, *target.names)), "r")
    except OSError as error:
        if error.errno in NOT_HERE:
            return None
        raise


def descend(root: Path, names: Sequence[str]) -> int:
    """A file descriptor of the last name, reached one name at a time."""
    here = os.open(root, STEP & ~os.O_NOFOLLOW)
    try:
        for name in names[:-1]:
            below = os.open(name, STEP, dir_fd=here)
            os.close(here)
            here = below
        found = os.open(names[-1], READ, dir_fd=here)
    finally:
        os.close(here)
    if not stat.S_ISREG(os.fstat(found).st_mode):
        os.close(found)
        raise FileNotFoundError(errno.ENOENT, "not a regular file", names[-1])
    return found
