"""Which machine a node lives on: its owner, the machine that is joining, and another machine that claims the node.

The agent sends the identity of its machine with every request, and the cluster reports it in the Node. A second
machine is refused while the owner is alive, unless the operator moves the node (`--replace`). Pure: every transition
returns the next state.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from aks_flex_node.api.machine_identity import MachineIdentity
from aks_flex_rp.text_enum import TextEnum

if TYPE_CHECKING:
    from collections.abc import Mapping

ALIVE_SECONDS = 300.0  # an owner that was heard from within this time keeps its node
CONFLICT_SECONDS = 180.0  # after which a conflict is over if the other machine is not heard from
MOVE_SECONDS = 120.0  # that a replaced machine has to stop before it counts as a conflict
MAX_REPLACED = 16  # replaced machines that a node remembers
CONFLICT_CONDITION = "MachineConflict"  # on the node resource, while two machines claim to be the node


class Claim(TextEnum):
    """The relation of a calling machine to a node."""

    OWNER = "owner"
    FREE = "free"  # the machine may become the owner
    REPLACED = "replaced"  # the node was moved to another machine
    CONFLICT = "conflict"  # the node lives on another machine


@dataclass(frozen=True)
class KnownMachine:
    identity: MachineIdentity
    since: float  # first fetch of the configuration, or first report

    @property
    def id(self) -> str:
        return self.identity.id

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> KnownMachine:
        names = ("id", "hostName", "address", "os")
        return cls(
            MachineIdentity(*(str(document.get(name, "")) for name in names)), float(document.get("since", 0.0))
        )

    def to_document(self) -> dict[str, Any]:
        one = self.identity
        named = {"id": one.id, "hostName": one.host_name, "address": one.address, "os": one.os, "since": self.since}
        return {key: value for key, value in named.items() if value}


@dataclass(frozen=True)
class ConflictingMachine:
    """Another machine that claims to be the node."""

    machine: MachineIdentity
    since: float
    last: float
    alternations: int = 0  # how often the owner was observed again after it

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> ConflictingMachine:
        known = KnownMachine.from_document(document)
        return cls(known.identity, known.since, float(document["last"]), int(document.get("alternations", 0)))

    def to_document(self) -> dict[str, Any]:
        named = {"last": self.last, "alternations": self.alternations}
        return KnownMachine(self.machine, self.since).to_document() | named


@dataclass(frozen=True)
class MachineOwnership:
    owner: KnownMachine | None = None
    candidate: KnownMachine | None = None  # has fetched the configuration of the current attempt
    replacing_until: float = 0.0  # until then, the current attempt may move the node to another machine
    replaced: tuple[str, ...] = ()  # IDs of machines that were replaced
    conflicting: ConflictingMachine | None = None

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> MachineOwnership:
        owner, candidate, conflicting = (document.get(name) for name in ("owner", "candidate", "conflicting"))
        return cls(
            KnownMachine.from_document(owner) if owner else None,
            KnownMachine.from_document(candidate) if candidate else None,
            float(document.get("replacingUntil", 0.0)),
            tuple(document.get("replaced", ())),
            ConflictingMachine.from_document(conflicting) if conflicting else None,
        )

    def to_document(self) -> dict[str, Any] | None:
        """Returns the stored form, or None if nothing is known."""
        named = {
            "owner": self.owner.to_document() if self.owner else None,
            "candidate": self.candidate.to_document() if self.candidate else None,
            "replacingUntil": self.replacing_until,
            "replaced": list(self.replaced),
            "conflicting": self.conflicting.to_document() if self.conflicting else None,
        }
        return {key: value for key, value in named.items() if value} or None

    @property
    def shown(self) -> KnownMachine | None:
        """Returns the machine that the node lives on, or the one that is joining."""
        return self.owner or self.candidate

    # Decisions

    def claim(self, machine: MachineIdentity, now: float) -> Claim:
        """Returns what a machine that reports as the node is to it.

        A machine that is only silent keeps its node: the other one may be a copy of its disk.
        """
        if self.owner and self.owner.id == machine.id:
            return Claim.OWNER
        if self.candidate and self.candidate.id == machine.id:
            return Claim.FREE
        if self.owner is None:
            return Claim.REPLACED if machine.id in self.replaced and not self.is_replacing(now) else Claim.FREE
        if machine.id in self.replaced:
            return Claim.REPLACED
        return Claim.FREE if self.is_replacing(now) else Claim.CONFLICT

    def fetch_conflict(
        self, machine: MachineIdentity, now: float, *, owner_alive: bool, joining: bool
    ) -> KnownMachine | None:
        """Returns the machine because of which this one may not fetch the configuration, or None if it may."""
        if self.owner and self.owner.id == machine.id:
            return None
        other = self.candidate
        if joining and other and other.id != machine.id and now - other.since < ALIVE_SECONDS:
            return other
        return self.owner if owner_alive and not self.is_replacing(now) else None

    def is_replacing(self, now: float) -> bool:
        """Returns whether an operator allows another machine to become the node now."""
        return now < self.replacing_until

    @property
    def conflict(self) -> ConflictingMachine | None:
        """Returns the other machine while two machines claim to be the node."""
        conflicting = self.conflicting
        if conflicting is None or not conflicting.alternations:
            return None
        moved = conflicting.machine.id in self.replaced
        return None if moved and conflicting.last - conflicting.since < MOVE_SECONDS else conflicting

    # Transitions

    def begin_attempt(self, *, replacing_until: float) -> MachineOwnership:
        return replace(self, candidate=None, replacing_until=replacing_until)

    def end_attempt(self) -> MachineOwnership:
        return replace(self, candidate=None, replacing_until=0.0)

    def left(self) -> MachineOwnership:
        return MachineOwnership(None, self.candidate, self.replacing_until, self.replaced)

    def fetched(self, machine: MachineIdentity, now: float) -> MachineOwnership:
        if self.owner and self.owner.id == machine.id:
            return replace(self, owner=KnownMachine(machine, self.owner.since), candidate=None, replacing_until=0.0)
        since = self.candidate.since if self.candidate and self.candidate.id == machine.id else now
        return replace(self, candidate=KnownMachine(machine, since))

    def promoted(self, machine: MachineIdentity, now: float) -> MachineOwnership:
        """Makes the machine the owner, and the earlier owner a replaced one if the node was moved on purpose."""
        known = self.candidate if self.candidate and self.candidate.id == machine.id else None
        moved = known is not None or self.is_replacing(now)
        earlier = [self.owner.id] if moved and self.owner and self.owner.id != machine.id else []
        ids = [each for each in (*self.replaced, *earlier) if each != machine.id]
        owner = KnownMachine(_merged(machine, known.identity if known else None), known.since if known else now)
        return MachineOwnership(owner, None, 0.0, tuple(dict.fromkeys(ids))[-MAX_REPLACED:])

    def owner_heard(self, machine: MachineIdentity, now: float) -> MachineOwnership:
        """Records the current address and name of the owner, and ends an old conflict."""
        if self.owner is None:
            return self
        after = replace(self, owner=KnownMachine(_merged(machine, self.owner.identity), self.owner.since))
        conflicting = self.conflicting
        return (
            replace(after, conflicting=None) if conflicting and now - conflicting.last > CONFLICT_SECONDS else after
        )

    def claimed_by(self, machine: MachineIdentity, now: float) -> MachineOwnership:
        """Records that a machine that is not the owner reported as the node, at most once a minute."""
        conflicting = self.conflicting
        if conflicting is None or conflicting.machine.id != machine.id:
            return replace(self, conflicting=ConflictingMachine(machine, now, now, 1))
        if now - conflicting.last < 60.0 and conflicting.alternations:
            return self
        return replace(
            self, conflicting=replace(conflicting, last=now, alternations=max(1, conflicting.alternations))
        )

    def observed(self, machine: MachineIdentity, now: float) -> MachineOwnership:
        """Records on which machine the cluster says that the Node lives.

        A Node that alternates between two machines is a conflict. A Node that stays on the other machine has moved.
        """
        if self.owner is None:
            return self.promoted(machine, now)
        if self.owner.id == machine.id:
            return self._owner_observed(now)
        if (self.candidate and self.candidate.id == machine.id) or (
            self.is_replacing(now) and machine.id not in self.replaced
        ):
            return self.promoted(machine, now)
        conflicting = self.conflicting
        if conflicting is None or conflicting.machine.id != machine.id:
            return replace(self, conflicting=ConflictingMachine(machine, now, now))
        if not conflicting.alternations and now - conflicting.since > ALIVE_SECONDS:
            return self.promoted(machine, now)
        return replace(self, conflicting=replace(conflicting, last=now))

    def _owner_observed(self, now: float) -> MachineOwnership:
        conflicting = self.conflicting
        if conflicting is None:
            return self
        if now - conflicting.last > CONFLICT_SECONDS:
            return replace(self, conflicting=None)
        return replace(self, conflicting=replace(conflicting, alternations=conflicting.alternations + 1))


def _merged(machine: MachineIdentity, known: MachineIdentity | None) -> MachineIdentity:
    """Completes an identity with what is known from before."""
    if known is None:
        return machine
    return MachineIdentity(
        machine.id, machine.host_name or known.host_name, machine.address or known.address, machine.os or known.os
    )
