"""Which machine a node lives on: its owner, the machine that is joining, and another machine that claims the node.

The node key says which machine is the node. It cannot say that two machines have it, as after a copy of a disk, or
that an operator has moved the node (`--replace`). So the agent sends the identity of its machine with every request,
and the cluster reports it in the Node. Pure: every transition returns the next state.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from aks_flex_node.api.machine_identity import MachineIdentity
from aks_flex_rp.text_enum import TextEnum

if TYPE_CHECKING:
    from typing_extensions import Self

ALIVE_SECONDS = 300.0  # an owner that was heard from within this time keeps its node
CONFLICT_SECONDS = 180.0  # after which a conflict is over if the other machine is not heard from
MOVE_SECONDS = 120.0  # that a replaced machine has to stop before it counts as a conflict
MAX_REPLACED = 16  # replaced machines that a node remembers
SECOND_FETCH_SECONDS = 600.0  # between records of fetches by a second client
CONFLICT_CONDITION = "MachineConflict"  # on the node resource, while two machines claim to be the node


class Claim(TextEnum):
    """The relation of a calling machine to a node."""

    OWNER = "owner"
    FREE = "free"  # the machine may become the owner
    REPLACED = "replaced"  # the node was moved to another machine
    CONFLICT = "conflict"  # the node lives on another machine


class SecondFetch(Struct, frozen=True):
    """A refused fetch with a config URL that is bound to another client."""

    client: str
    at: float


class KnownMachine(Struct, frozen=True, rename="camel"):
    id: str
    host_name: str = ""
    address: str = ""
    os: str = ""
    since: float = 0.0  # first fetch of the configuration, or first report

    @classmethod
    def of(cls, machine: MachineIdentity, since: float, **more: Any) -> Self:
        return cls(machine.id, machine.host_name, machine.address, machine.os, since, **more)

    @property
    def identity(self) -> MachineIdentity:
        return MachineIdentity(self.id, self.host_name, self.address, self.os)


class ConflictingMachine(KnownMachine, frozen=True):
    """Another machine that claims to be the node."""

    last: float = 0.0
    alternations: int = 0  # how often the owner was observed again after it


class MachineOwnership(Struct, frozen=True, rename="camel"):
    """Stored as it is, without empty values."""

    owner: KnownMachine | None = None
    candidate: KnownMachine | None = None  # has fetched the configuration of the current attempt
    replacing_until: float = 0.0  # until then, the current attempt may move the node to another machine
    replaced: tuple[str, ...] = ()  # IDs of machines that were replaced
    conflicting: ConflictingMachine | None = None
    fetch_key: str = ""  # thumbprint of the key that fetched the configuration first, to which the URL is bound
    fetch_machine: str = ""  # ID of its machine; empty if it did not send it
    second_fetch: SecondFetch | None = None

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

    def was_fetched_by(self, key: str, machine: MachineIdentity | None) -> bool:
        """Returns whether this client fetched the configuration first. The same key on another machine is a copy, and
        a client that no longer says which machine it is may be one.
        """
        is_copy = bool(self.fetch_machine) and (machine is None or machine.id != self.fetch_machine)
        return key == self.fetch_key and not is_copy

    def is_replacing(self, now: float) -> bool:
        """Returns whether an operator allows another machine to become the node now."""
        return now < self.replacing_until

    @property
    def conflict(self) -> ConflictingMachine | None:
        """Returns the other machine while two machines claim to be the node."""
        conflicting = self.conflicting
        if conflicting is None or not conflicting.alternations:
            return None
        moved = conflicting.id in self.replaced
        return None if moved and conflicting.last - conflicting.since < MOVE_SECONDS else conflicting

    # Transitions

    def begin_attempt(self, *, replacing_until: float) -> MachineOwnership:
        return MachineOwnership(self.owner, None, replacing_until, self.replaced, self.conflicting)

    def end_attempt(self) -> MachineOwnership:
        return self.begin_attempt(replacing_until=0.0)

    def fetched(self, key: str, machine: MachineIdentity | None, now: float) -> MachineOwnership:
        """Binds the config URL of the attempt to its first client."""
        bound = replace(self, fetch_key=key, fetch_machine=machine.id if machine else self.fetch_machine)
        if machine is None:
            return bound
        if self.owner and self.owner.id == machine.id:
            return replace(
                bound, owner=KnownMachine.of(machine, self.owner.since), candidate=None, replacing_until=0.0
            )
        since = self.candidate.since if self.candidate and self.candidate.id == machine.id else now
        return replace(bound, candidate=KnownMachine.of(machine, since))

    def fetch_refused(self, client: str, now: float) -> MachineOwnership:
        """Records a second client, at most once in SECOND_FETCH_SECONDS."""
        if self.second_fetch and now - self.second_fetch.at < SECOND_FETCH_SECONDS:
            return self
        return replace(self, second_fetch=SecondFetch(client, now))

    def left(self) -> MachineOwnership:
        return replace(self, owner=None, conflicting=None)

    def promoted(self, machine: MachineIdentity, now: float) -> MachineOwnership:
        """Makes the machine the owner, and the earlier owner a replaced one if the node was moved on purpose."""
        known = self.candidate if self.candidate and self.candidate.id == machine.id else None
        moved = known is not None or self.is_replacing(now)
        earlier = [self.owner.id] if moved and self.owner and self.owner.id != machine.id else []
        ids = [each for each in (*self.replaced, *earlier) if each != machine.id]
        owner = KnownMachine.of(_merged(machine, known.identity if known else None), known.since if known else now)
        kept = tuple(dict.fromkeys(ids))[-MAX_REPLACED:]
        return replace(self, owner=owner, candidate=None, replacing_until=0.0, replaced=kept, conflicting=None)

    def owner_heard(self, machine: MachineIdentity, now: float) -> MachineOwnership:
        """Records the current address and name of the owner, and ends an old conflict."""
        if self.owner is None:
            return self
        after = replace(self, owner=KnownMachine.of(_merged(machine, self.owner.identity), self.owner.since))
        conflicting = self.conflicting
        return (
            replace(after, conflicting=None) if conflicting and now - conflicting.last > CONFLICT_SECONDS else after
        )

    def claimed_by(self, machine: MachineIdentity, now: float) -> MachineOwnership:
        """Records that a machine that is not the owner reported as the node, at most once a minute."""
        conflicting = self.conflicting
        if conflicting is None or conflicting.id != machine.id:
            return replace(self, conflicting=ConflictingMachine.of(machine, now, last=now, alternations=1))
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
        if conflicting is None or conflicting.id != machine.id:
            return replace(self, conflicting=ConflictingMachine.of(machine, now, last=now))
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
