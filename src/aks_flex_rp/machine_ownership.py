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
class RivalMachine:
    """Another machine that claims to be the node."""

    machine: MachineIdentity
    since: float
    last: float
    alternations: int = 0  # how often the owner was observed again after it

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> RivalMachine:
        known = KnownMachine.from_document(document)
        return cls(known.identity, known.since, float(document["last"]), int(document.get("alternations", 0)))

    def to_document(self) -> dict[str, Any]:
        named = {"last": self.last, "alternations": self.alternations}
        return KnownMachine(self.machine, self.since).to_document() | named


@dataclass(frozen=True)
class MachineOwnership:
    owner: KnownMachine | None = None
    candidate: KnownMachine | None = None  # has fetched the configuration of the current attempt
    replacing: bool = False  # the current attempt may move the node to another machine
    replaced: tuple[str, ...] = ()  # IDs of machines that were replaced
    rival: RivalMachine | None = None

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> MachineOwnership:
        owner, candidate, rival = (document.get(name) for name in ("owner", "candidate", "rival"))
        return cls(
            KnownMachine.from_document(owner) if owner else None,
            KnownMachine.from_document(candidate) if candidate else None,
            bool(document.get("replacing")),
            tuple(document.get("replaced", ())),
            RivalMachine.from_document(rival) if rival else None,
        )

    def to_document(self) -> dict[str, Any] | None:
        """Returns the stored form, or None if nothing is known."""
        named = {
            "owner": self.owner.to_document() if self.owner else None,
            "candidate": self.candidate.to_document() if self.candidate else None,
            "replacing": self.replacing,
            "replaced": list(self.replaced),
            "rival": self.rival.to_document() if self.rival else None,
        }
        return {key: value for key, value in named.items() if value} or None

    @property
    def shown(self) -> KnownMachine | None:
        """Returns the machine that the node lives on, or the one that is joining."""
        return self.owner or self.candidate

    # Decisions

    def claim(self, machine: MachineIdentity, *, owner_alive: bool) -> Claim:
        """Returns what a machine that reports as the node is to it."""
        if self.owner and self.owner.id == machine.id:
            return Claim.OWNER
        if self.candidate and self.candidate.id == machine.id:
            return Claim.FREE
        if self.owner is None:
            return Claim.REPLACED if machine.id in self.replaced and not self.replacing else Claim.FREE
        if machine.id in self.replaced:
            return Claim.REPLACED
        return Claim.CONFLICT if owner_alive and not self.replacing else Claim.FREE

    def fetch_conflict(
        self, machine: MachineIdentity, now: float, *, owner_alive: bool, joining: bool
    ) -> KnownMachine | None:
        """Returns the machine because of which this one may not fetch the configuration, or None if it may."""
        if self.owner and self.owner.id == machine.id:
            return None
        other = self.candidate
        if joining and other and other.id != machine.id and now - other.since < ALIVE_SECONDS:
            return other
        return self.owner if owner_alive and not self.replacing else None

    @property
    def conflict(self) -> RivalMachine | None:
        """Returns the other machine while two machines claim to be the node."""
        rival = self.rival
        if rival is None or not rival.alternations:
            return None
        moved = rival.machine.id in self.replaced
        return None if moved and rival.last - rival.since < MOVE_SECONDS else rival

    # Transitions

    def begin_attempt(self, *, replacing: bool) -> MachineOwnership:
        return replace(self, candidate=None, replacing=replacing)

    def end_attempt(self) -> MachineOwnership:
        return replace(self, candidate=None, replacing=False)

    def left(self) -> MachineOwnership:
        return MachineOwnership(None, self.candidate, self.replacing, self.replaced)

    def fetched(self, machine: MachineIdentity, now: float) -> MachineOwnership:
        if self.owner and self.owner.id == machine.id:
            return replace(self, owner=KnownMachine(machine, self.owner.since), candidate=None)
        since = self.candidate.since if self.candidate and self.candidate.id == machine.id else now
        return replace(self, candidate=KnownMachine(machine, since))

    def promoted(self, machine: MachineIdentity, now: float) -> MachineOwnership:
        """Makes the machine the owner, and the earlier owner a replaced one."""
        known = self.candidate if self.candidate and self.candidate.id == machine.id else None
        earlier = [self.owner.id] if self.owner and self.owner.id != machine.id else []
        ids = [each for each in (*self.replaced, *earlier) if each != machine.id]
        owner = KnownMachine(_merged(machine, known.identity if known else None), known.since if known else now)
        return MachineOwnership(owner, None, False, tuple(dict.fromkeys(ids))[-MAX_REPLACED:])

    def owner_heard(self, machine: MachineIdentity, now: float) -> MachineOwnership:
        """Records the current address and name of the owner, and ends an old conflict."""
        if self.owner is None:
            return self
        after = replace(self, owner=KnownMachine(_merged(machine, self.owner.identity), self.owner.since))
        rival = self.rival
        return replace(after, rival=None) if rival and now - rival.last > CONFLICT_SECONDS else after

    def claimed_by(self, machine: MachineIdentity, now: float) -> MachineOwnership:
        """Records that a machine that is not the owner reported as the node, at most once a minute."""
        rival = self.rival
        if rival is None or rival.machine.id != machine.id:
            return replace(self, rival=RivalMachine(machine, now, now, 1))
        if now - rival.last < 60.0 and rival.alternations:
            return self
        return replace(self, rival=replace(rival, last=now, alternations=max(1, rival.alternations)))

    def observed(self, machine: MachineIdentity, now: float) -> MachineOwnership:
        """Records on which machine the cluster says that the Node lives.

        A Node that alternates between two machines is a conflict. A Node that stays on the other machine has moved.
        """
        if self.owner is None:
            return self.promoted(machine, now)
        if self.owner.id == machine.id:
            return self._owner_observed(now)
        if (self.candidate and self.candidate.id == machine.id) or (
            self.replacing and machine.id not in self.replaced
        ):
            return self.promoted(machine, now)
        rival = self.rival
        if rival is None or rival.machine.id != machine.id:
            return replace(self, rival=RivalMachine(machine, now, now))
        if not rival.alternations and now - rival.since > ALIVE_SECONDS:
            return self.promoted(machine, now)
        return replace(self, rival=replace(rival, last=now))

    def _owner_observed(self, now: float) -> MachineOwnership:
        rival = self.rival
        if rival is None:
            return self
        if now - rival.last > CONFLICT_SECONDS:
            return replace(self, rival=None)
        return replace(self, rival=replace(rival, alternations=rival.alternations + 1))


def _merged(machine: MachineIdentity, known: MachineIdentity | None) -> MachineIdentity:
    """Completes an identity with what is known from before."""
    if known is None:
        return machine
    return MachineIdentity(
        machine.id, machine.host_name or known.host_name, machine.address or known.address, machine.os or known.os
    )
