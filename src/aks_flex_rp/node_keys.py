"""Which keys may act as a node: its current key, the next one, and earlier ones that only learn what became of them.

The service knows a key by its thumbprint. A key is bound by the first fetch of a config URL, or by a rotation. It
becomes the current key at its first use, so that an agent that stops in between can go on with the earlier key. Pure:
every transition returns the next state.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from aks_flex_rp.text_enum import TextEnum

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_EARLIER = 8  # replaced and revoked keys that a node remembers, of each kind
TOMBSTONE_MARK = " key:"  # between the identity and the key of a deleted node


class KeyUse(TextEnum):
    """What a key is to a node."""

    CURRENT = "current"
    NEXT = "next"  # bound, and not used yet
    FORMER = "former"  # replaced by another key
    REVOKED = "revoked"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class NodeKeys:
    current: str = ""  # thumbprint; empty if the node has no key, or its key was revoked
    since: float = 0.0  # when the current key was bound
    next: str = ""
    former: tuple[str, ...] = ()
    revoked: tuple[str, ...] = ()
    revoked_at: float = 0.0  # 0 unless the last key of the node is revoked

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> NodeKeys:
        return cls(
            str(document.get("current", "")),
            float(document.get("since", 0.0)),
            str(document.get("next", "")),
            tuple(map(str, document.get("former", ()))),
            tuple(map(str, document.get("revoked", ()))),
            float(document.get("revokedAt", 0.0)),
        )

    def to_document(self) -> dict[str, Any] | None:
        """Returns the stored form, or None if the node never had a key."""
        named = {
            "current": self.current,
            "since": self.since,
            "next": self.next,
            "former": list(self.former),
            "revoked": list(self.revoked),
            "revokedAt": self.revoked_at,
        }
        return {key: value for key, value in named.items() if value} or None

    @property
    def is_revoked(self) -> bool:
        """Whether the key was revoked and no other one is bound since. The node may do nothing until then."""
        return bool(self.revoked_at)

    @property
    def known(self) -> frozenset[str]:
        """All keys whose owner may learn what became of the node."""
        return frozenset(filter(None, (self.current, self.next, *self.former, *self.revoked)))

    def use_of(self, thumbprint: str) -> KeyUse:
        if not thumbprint:
            return KeyUse.UNKNOWN
        if thumbprint == self.current:
            return KeyUse.CURRENT
        if thumbprint == self.next:
            return KeyUse.NEXT
        if thumbprint in self.revoked:
            return KeyUse.REVOKED
        return KeyUse.FORMER if thumbprint in self.former else KeyUse.UNKNOWN

    def bound(self, thumbprint: str, now: float) -> NodeKeys:
        """Binds a key: at once if the node has none, else it becomes the current key at its first use."""
        if thumbprint == self.current:
            return replace(self, next="")
        if self.current:
            return replace(self, next=thumbprint)
        former = tuple(each for each in self.former if each != thumbprint)
        return replace(self, current=thumbprint, since=now, next="", former=former, revoked_at=0.0)

    def used(self, thumbprint: str, now: float) -> NodeKeys:
        """Makes the next key the current one at its first use."""
        if not thumbprint or thumbprint != self.next:
            return self
        former = (*(each for each in self.former if each != thumbprint), self.current)[-MAX_EARLIER:]
        return replace(self, current=thumbprint, since=now, next="", former=former)

    def revoke(self, now: float) -> NodeKeys:
        ended = [each for each in (self.current, self.next) if each]
        revoked = tuple(dict.fromkeys((*self.revoked, *ended)))[-MAX_EARLIER:]
        return NodeKeys(former=self.former, revoked=revoked, revoked_at=now)


def tombstone_identity(identity: str, keys: NodeKeys) -> str:
    """Returns what the row of a deleted node keeps, so that the node can learn that it is deleted."""
    return f"{identity}{TOMBSTONE_MARK}{keys.current}" if keys.current else identity


def parse_tombstone_identity(text: str) -> tuple[str, NodeKeys]:
    identity, _, current = text.partition(TOMBSTONE_MARK)
    return identity, NodeKeys(current)
