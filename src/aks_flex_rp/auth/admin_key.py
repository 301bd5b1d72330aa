"""The local admin key, which makes a service on one machine usable before Entra ID is configured."""

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

ADMIN_KEY_PREFIX = "aksflex_admin_"  # a recognizable prefix, so that secret scanners find a leaked key
MIN_KEY_LENGTH = len(ADMIN_KEY_PREFIX) + 32
WORLD_ACCESS = 0o007  # group access is allowed, because Kubernetes mounts a Secret that way for a non-root service
ADMIN_CALLER = Caller("local-admin", "local admin key", CallerKind.KEY, ids=frozenset({"local-admin"}))

FileVersion = tuple[int, int, int]


class AdminKey:
    """The admin key in a file. Replacing the file rotates the key: the next request uses the new one."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._version: FileVersion | None = None
        self._digest: bytes | None = None

    def ensure(self) -> bool:
        """Creates the key if there is none, and validates it. Returns whether it was created."""
        made = not self._path.exists() and private_files.create(self._path, generate_key() + b"\n")
        if not is_usable_key(self._read()):
            raise ConfigError(
                "admin-key-invalid",
                f"The admin key in {self._path} is invalid. It must be `{ADMIN_KEY_PREFIX}` and at least 32 more "
                "characters on one line.",
                "Delete the file and restart the service to create a new key. Users of the old key need the new one.",
            )
        return made

    def matches(self, key: bytes) -> bool:
        """Compares a key with the admin key in constant time."""
        expected = self._current()
        return expected is not None and hmac.compare_digest(hashlib.sha256(key).digest(), expected)

    @property
    def fingerprint(self) -> str:
        """Returns a hash that identifies the current key without revealing it, or an empty string."""
        current = self._current()
        return hashlib.sha256(b"mark of " + current).hexdigest() if current else ""

    def _current(self) -> bytes | None:
        try:
            found = self._path.stat()
            mark = (found.st_ctime_ns, found.st_ino, found.st_size)
            if mark != self._version:
                key = self._read()
                self._digest = hashlib.sha256(key).digest() if is_usable_key(key) else None
                self._version = mark
        except (OSError, ConfigError):  # removed, or readable by all users: then no key is valid
            self._version = self._digest = None
        return self._digest

    def _read(self) -> bytes:
        return private_files.read(self._path, WORLD_ACCESS).strip()


def generate_key() -> bytes:
    return f"{ADMIN_KEY_PREFIX}{secrets.token_urlsafe(32)}".encode()


def is_usable_key(key: bytes) -> bool:
    return len(key) >= MIN_KEY_LENGTH and key.startswith(ADMIN_KEY_PREFIX.encode()) and len(key.split()) == 1
