"""The node key on this machine: made at the first contact with a provider, kept in two files until unbootstrap.

A file is written completely before the key in it is used, so that an agent that stops at any moment goes on with the
same key. A file that cannot be read counts as damaged, and the other one is used.
"""

from __future__ import annotations

import hashlib
import json
import time
from functools import lru_cache
from typing import Any

import msgspec
from msgspec.structs import replace

from aks_flex_node.agent.paths import NODE_KEY, NODE_KEY_COPY
from aks_flex_node.api import node_keys
from aks_flex_node.errors import MachineError
from aks_flex_node.host.actions import SetAside, WriteFile
from aks_flex_node.host.host import EntryKind, Host
from aks_flex_node.lean_dataclass import frozen
from aks_flex_node.timestamps import format_utc, parse_utc

Document = dict[str, Any]

ROTATION_SECONDS = 365 * 86400.0  # after which a key is replaced


class StoredKey(msgspec.Struct, frozen=True, rename="camel"):
    private_key: str  # PEM
    thumbprint: str
    created: str
    audience: str = ""  # of assertions; empty until a provider has bound the key
    next: StoredKey | None = None  # the key that replaces this one, and is not bound yet
    previous: StoredKey | None = None  # the key that this one replaced; a provider restored from a backup knows it

    def __repr__(self) -> str:
        return f"StoredKey({self.thumbprint})"

    @property
    def is_bound(self) -> bool:
        return bool(self.audience)

    def prove(self, audience: str, now: float) -> str:
        """Returns the proof that this machine has the key."""
        return node_keys.sign_proof(self.private_key, audience, now)

    def replaced_by(self, new: StoredKey, audience: str) -> StoredKey:
        """Returns the new key, bound. It keeps this one as its only predecessor, unless it is the same key."""
        previous = self.previous if new.thumbprint == self.thumbprint else replace(self, next=None, previous=None)
        return replace(new, audience=audience, next=None, previous=previous)

    def is_rotation_due(self, now: float) -> bool:
        """Returns whether the key is a year old, or a rotation was begun and not completed."""
        try:
            age = now - parse_utc(self.created).timestamp()
        except ValueError:
            age = 0.0
        return self.next is not None or age >= ROTATION_SECONDS


@frozen
class NodeKeyStore:
    host: Host

    def read(self) -> StoredKey | None:
        """Returns the key of the newest valid file, or None if this machine has none."""
        return self._newest()[0]

    @property
    def has_bound_key(self) -> bool:
        """Whether a provider has bound the key of this machine."""
        key = self.read()
        return key is not None and key.is_bound

    def ensure(self, now: float | None = None) -> StoredKey:
        """Returns the key of this machine, and makes one if it has none. Restores a damaged file from the other."""
        known, revision, is_complete = self._newest()
        if known and is_complete:
            return known
        key = known or new_key(time.time() if now is None else now)
        self._write(key, revision + 1)
        return key

    def save(self, key: StoredKey) -> None:
        """Replaces the key in both files."""
        known, revision, is_complete = self._newest()
        if known != key or not is_complete:
            self._write(key, revision + 1)

    def bind(self, audience: str, thumbprint: str = "") -> None:
        """Records that a provider has bound the key with this thumbprint, and the audience of assertions for it.

        A key that was made by `renew` becomes the key of this machine, without a predecessor. An empty audience,
        of a provider that has none for the cluster, binds nothing and leaves the known one.
        """
        known = self.read()
        if known and known.next and known.next.thumbprint == thumbprint:
            self.save(replace(known.next, audience=audience))
        elif known and audience and known.audience != audience:
            self.save(replace(known, audience=audience))

    def unbind(self) -> None:
        """Records that the provider has not bound the key of this machine."""
        known = self.read()
        if known and known.is_bound:
            self.save(replace(known, audience=""))

    def renew(self) -> StoredKey:
        """Makes a key that replaces one which the provider refuses, as soon as `bind` is called with it."""
        made = new_key(time.time())
        self.save(replace(self.ensure(), next=made))
        return made

    def discard(self, thumbprint: str) -> None:
        """Forgets a key that was made by `renew`, if it is not the key of this machine yet."""
        known = self.read()
        if known and known.next and known.next.thumbprint == thumbprint:
            self.save(replace(known, next=None))

    def _newest(self) -> tuple[StoredKey | None, int, bool]:
        """Returns the key, its revision, and whether both files have it."""
        parsed = [_parsed(self.host.read(path)) for path in (NODE_KEY, NODE_KEY_COPY)]
        found = [each for each in parsed if each is not None]
        if not found:
            return None, 0, False
        key, revision = max(found, key=lambda each: each[1])
        return key, revision, all(each == (key, revision) for each in parsed)

    def _write(self, key: StoredKey, revision: int) -> None:
        """Writes both files. One is sufficient. Raises MachineError if none can be written."""
        failures = []
        for path in (NODE_KEY, NODE_KEY_COPY):
            try:
                entry, content = self.host.stat(path), self.host.read(path)
                if entry and (entry.kind is not EntryKind.FILE or _parsed(content) is None):
                    self.host.apply(SetAside(path))
                document = {**msgspec.to_builtins(key), "revision": revision}
                text = json.dumps({**document, "digest": _digest(document)}, indent=1) + "\n"
                self.host.apply(WriteFile(path, text.encode(), 0o600, secret=True))
            except MachineError as error:
                failures.append(error)
        if len(failures) == 2:
            raise failures[0]


def new_key(now: float) -> StoredKey:
    private = node_keys.new_private_key()
    return StoredKey(private, node_keys.public_key(private).thumbprint, format_utc(now))


@lru_cache(maxsize=2)  # the daemon reads both files before every request
def _parsed(content: bytes | None) -> tuple[StoredKey, int] | None:
    """Returns the key and revision of a file, or None if it is missing or damaged."""
    try:
        document = json.loads(content or b"")
        digest, revision = document.pop("digest"), document["revision"]
        return (msgspec.convert(document, StoredKey), int(revision)) if digest == _digest(document) else None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _digest(document: Document) -> str:
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()
