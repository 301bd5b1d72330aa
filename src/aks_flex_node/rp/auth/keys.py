"""The local admin key: what makes a service on one machine usable before anybody has set up Entra ID."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from typing import TYPE_CHECKING

from aks_flex_node.errors import ConfigError
from aks_flex_node.rp import private_files
from aks_flex_node.rp.callers import Caller

if TYPE_CHECKING:
    from pathlib import Path

PREFIX = "aksflex_admin_"  # so that scanners, and people, see at once what has leaked
SHORTEST = len(PREFIX) + 32
EVERYBODY = 0o007  # a group may read it: that is how Kubernetes mounts a Secret for a service that is not root
ADMIN = Caller("local-admin", "local admin key", "Key", ids=frozenset({"local-admin"}))

Mark = tuple[int, int, int]


class AdminKey:
    """The key in a file. Whoever replaces the file has rotated the key: the next request sees it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._mark: Mark | None = None
        self._digest: bytes | None = None

    def ensure(self) -> bool:
        """Make the key if there is none, and see that it can be used; whether it was made now."""
        made = not self._path.exists() and private_files.create(self._path, new_key() + b"\n")
        if not usable(self._read()):
            raise ConfigError(
                "admin-key-unusable",
                f"The admin key in {self._path} is not `{PREFIX}` and at least 32 more characters on one line.",
                "Delete the file and start again: a new key is made. Whoever used the old one needs the new one.",
            )
        return made

    def opens(self, key: bytes) -> bool:
        """Whether this is the key. How long the answer takes says nothing about how much of it was right."""
        expected = self._current()
        return expected is not None and hmac.compare_digest(hashlib.sha256(key).digest(), expected)

    @property
    def mark(self) -> str:
        """Which key there is now, without telling anything of it; empty when there is none."""
        current = self._current()
        return hashlib.sha256(b"mark of " + current).hexdigest() if current else ""

    def _current(self) -> bytes | None:
        try:
            found = self._path.stat()
            mark = (found.st_ctime_ns, found.st_ino, found.st_size)
            if mark != self._mark:
                key = self._read()
                self._digest = hashlib.sha256(key).digest() if usable(key) else None
                self._mark = mark
        except (OSError, ConfigError):  # taken away, or open to all: then nobody is admin by key
            self._mark = self._digest = None
        return self._digest

    def _read(self) -> bytes:
        return private_files.read(self._path, EVERYBODY).strip()


def new_key() -> bytes:
    return f"{PREFIX}{secrets.token_urlsafe(32)}".encode()


def usable(key: bytes) -> bool:
    return len(key) >= SHORTEST and key.startswith(PREFIX.encode()) and len(key.split()) == 1
