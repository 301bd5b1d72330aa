"""The local admin key: makes a service on one machine usable before Entra ID is configured."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from typing import TYPE_CHECKING

from aks_flex_node.errors import ConfigError
from aks_flex_rp import private_files
from aks_flex_rp.callers import Caller, CallerKind

if TYPE_CHECKING:
    from pathlib import Path

ADMIN_KEY_PREFIX = "aksflex_admin_"  # so that scanners, and people, see at once what has leaked
MIN_KEY_LENGTH = len(ADMIN_KEY_PREFIX) + 32
WORLD_ACCESS = 0o007  # a group may read it: that is how Kubernetes mounts a Secret for a service that is not root
ADMIN_CALLER = Caller("local-admin", "local admin key", CallerKind.KEY, ids=frozenset({"local-admin"}))

FileVersion = tuple[int, int, int]


class AdminKey:
    """The key in a file. Whoever replaces the file has rotated the key: the next request sees it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._mark: FileVersion | None = None
        self._digest: bytes | None = None

    def ensure(self) -> bool:
        """Make the key if there is none, and see that it can be used; whether it was made now."""
        made = not self._path.exists() and private_files.create(self._path, generate_key() + b"\n")
        if not is_usable_key(self._read()):
            raise ConfigError(
                "admin-key-invalid",
                f"The admin key in {self._path} is not `{ADMIN_KEY_PREFIX}` and at least 32 more characters on one "
                "line.",
                "Delete the file and start again: a new key is made. Whoever used the old one needs the new one.",
            )
        return made

    def matches(self, key: bytes) -> bool:
        """Whether this is the key. How long the answer takes says nothing about how much of it was right."""
        expected = self._current()
        return expected is not None and hmac.compare_digest(hashlib.sha256(key).digest(), expected)

    @property
    def fingerprint(self) -> str:
        """Which key there is now, without telling anything of it; empty when there is none."""
        current = self._current()
        return hashlib.sha256(b"mark of " + current).hexdigest() if current else ""

    def _current(self) -> bytes | None:
        try:
            found = self._path.stat()
            mark = (found.st_ctime_ns, found.st_ino, found.st_size)
            if mark != self._mark:
                key = self._read()
                self._digest = hashlib.sha256(key).digest() if is_usable_key(key) else None
                self._mark = mark
        except (OSError, ConfigError):  # taken away, or open to all: then nobody is admin by key
            self._mark = self._digest = None
        return self._digest

    def _read(self) -> bytes:
        return private_files.read(self._path, WORLD_ACCESS).strip()


def generate_key() -> bytes:
    return f"{ADMIN_KEY_PREFIX}{secrets.token_urlsafe(32)}".encode()


def is_usable_key(key: bytes) -> bool:
    return len(key) >= MIN_KEY_LENGTH and key.startswith(ADMIN_KEY_PREFIX.encode()) and len(key.split()) == 1
