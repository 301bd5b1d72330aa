"""Which keys may act as a node: its current key, the next one, and earlier ones that only learn what became of them.

The service knows a key by its thumbprint. A key is bound by the first fetch of a config URL, or by a rotation. It
becomes the current key at its first use, so that an agent that stops in between can go on with the earlier key. Pure:
every transition returns the next state.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from aks_flex_rp.text_enum import TextEnum

MAX_EARLIER = 8  # replaced and revoked keys that a node remembers, of each kind
TOMBSTONE_MARK = " key:"  # between the identity and the key of a deleted node


class KeyUse(TextEnum):
    """What a key is to a node."""

    CURRENT = "current"
    NEXT = "next"  # bound, and not used yet
    FORMER = "former"  # replaced by another key
    REVOKED = "revoked"
    UNKNOWN = "unknown"


class NodeKeys(Struct, frozen=True, rename="camel"):
    """Stored as it is, without empty values."""

    current: str = ""  # thumbprint; empty if the node has no key, or its key was revoked
    since: float = 0.0  # when the current key was bound
    next: str = ""
    former: tuple[str, ...] = ()
    revoked: tuple[str, ...] = ()
    revoked_at: float = 0.0  # 0 unless the last key of the node is revoked
    blocked_identity: str = ""  # Azure identity of the machine whose key was revoked
    enrolled: bool = False  # whether an enrolment created the node

    @property
    def is_revoked(self) -> bool:
        """Whether the key was revoked and no other one is bound since. The node may do nothing until then."""
        return bool(self.revoked_at)

    @property
    def known(self) -> frozenset[str]:
        """All keys whose owner may learn what became of the node."""
        return frozenset(filter(None, (self.current, self.next, *self.former, *self.revoked)))

    @property
    def generation(self) -> str:
        """Identifies the present key among all that the node has had, also while it has none."""
        return f"{self.current}@{self.since or self.revoked_at}"

    def blocks(self, identity: str) -> bool:
        """Returns whether a machine that was cut off has this Azure identity. With it, it must not get a key,
        credentials or a token again. It may announce a join, which an operator has allowed by a new URL.
        """
        return self.is_revoked or (bool(identity) and identity == self.blocked_identity)

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

    def is_valid(self, thumbprint: str) -> bool:
        return self.use_of(thumbprint) in {KeyUse.CURRENT, KeyUse.NEXT}

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

    def revoke(self, now: float, identity: str = "") -> NodeKeys:
        """Revokes all keys, also earlier ones, which the machine may still have, and blocks its Azure identity."""
        ended = [each for each in (*self.former, self.current, self.next) if each]
        revoked = tuple(dict.fromkeys((*self.revoked, *ended)))[-2 * MAX_EARLIER :]
        return NodeKeys(revoked=revoked, revoked_at=now, blocked_identity=identity, enrolled=self.enrolled)


def tombstone_identity(identity: str, keys: NodeKeys) -> str:
    """Returns what the row of a deleted node keeps, so that the node can learn that it is deleted."""
    kept = [each for each in (keys.current, keys.next, *keys.revoked[-1:]) if each]
    return f"{identity}{TOMBSTONE_MARK}{','.join(kept)}" if kept else identity


def parse_tombstone_identity(text: str) -> tuple[str, NodeKeys]:
    """Returns the identity and the keys of a deleted node. Each of them may only learn that the node is deleted."""
    identity, _, kept = text.partition(TOMBSTONE_MARK)
    current, *others = kept.split(",")
    return identity, NodeKeys(current, former=tuple(others))
