"""Checks that a request comes from the machine that a node lives on, and records that a node moves to another one.

The first fetch binds a config URL to the key of its client in the same write. A second machine gets 409 while the
owner is alive: at the fetch of the configuration, and at polls and reports. Only an operator can move a living node,
with `replaceMachine` (`--replace`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NoReturn

from aks_flex_node.api.arm_errors import CONFIG_URL_TAKEN, NODE_KEY_REVOKED, ON_ANOTHER_MACHINE, REPLACED
from aks_flex_node.api.enrolments import CLONED
from aks_flex_node.api.node_keys import short
from aks_flex_node.errors import FlexError
from aks_flex_rp.arm import errors
from aks_flex_rp.arm.errors import ArmError
from aks_flex_rp.arm.ids import record_resource
from aks_flex_rp.counted_events import CountedEvents
from aks_flex_rp.join_state import JoinPhase
from aks_flex_rp.machine_ownership import ALIVE_SECONDS, CONFLICT_CONDITION, Claim
from aks_flex_rp.node_conditions import condition, with_condition
from aks_flex_rp.node_keys import KeyUse
from aks_flex_rp.nodes.context import node_busy
from aks_flex_rp.store.model import AuditAction, AuditEvent

if TYPE_CHECKING:
    from aks_flex_node.api.machine_identity import MachineIdentity
    from aks_flex_rp.delivery.config_url import FetchedBundle
    from aks_flex_rp.machine_ownership import KnownMachine, MachineOwnership
    from aks_flex_rp.nodes.context import NodeContext, RequestContext
    from aks_flex_rp.store.model import Document, Node


JOINING = frozenset({JoinPhase.CONFIG_FETCHED, JoinPhase.BOOTSTRAP_ATTEMPTED})


@dataclass(frozen=True)
class FetchingClient:
    """The client that fetches a config URL. It is not authenticated, and has proved that it has its key."""

    machine: MachineIdentity | None
    thumbprint: str
    source: str
    request: str

    def event(self, at: float, what: AuditAction, resource: str, **detail: object) -> AuditEvent:
        return AuditEvent(at, "bearer of the URL", what, resource, self.source, self.request, detail=detail)

    @property
    def shown_machine(self) -> dict[str, str]:
        return self.machine.to_document() if self.machine else {}

    def __str__(self) -> str:
        shown = str(self.machine) if self.machine else "a client that did not send its machine"
        return f"{shown} with the key {short(self.thumbprint)}"


@dataclass(frozen=True)
class MachineClaims:
    context: NodeContext
    refusals: CountedEvents = field(default_factory=CountedEvents)  # of fetches, which need no identity

    async def living_owner(self, node: Node) -> KnownMachine | None:
        """Returns the machine on which a node lives or which is about to join, if it is alive, or None."""
        owner = node.join.machines.owner
        if owner is None:
            return None
        if not node.join.is_joined:
            recent = self.context.now() - owner.since < ALIVE_SECONDS
            return owner if recent and node.join.phase in JOINING else None
        return owner if await self._is_alive(node, owner) else None

    async def _is_alive(self, node: Node, owner: KnownMachine) -> bool:
        """Returns whether the owner was heard from recently, or its Node is Ready."""
        seen = max(node.last_seen, self.context.last_seen(node.cluster, node.key))
        if node.is_monitored and self.context.now() - seen < ALIVE_SECONDS:
            return True
        try:
            in_cluster = await self.context.clusters.node_machine(node.cluster, node.key)
        except FlexError:
            return True  # what cannot be read does not count as gone
        return in_cluster is not None and in_cluster.ready and in_cluster.machine.id == owner.id

    async def _lives_elsewhere(self, node: Node, machine: MachineIdentity) -> bool:
        """Returns whether a joined node whose owner is not recorded yet lives on another machine with its key."""
        if node.join.machines.owner or not node.join.is_joined:
            return False
        try:
            in_cluster = await self.context.clusters.node_machine(node.cluster, node.key)
        except FlexError:
            return False
        return in_cluster is not None and in_cluster.ready and in_cluster.machine.id != machine.id

    async def on_fetch(self, bundle: FetchedBundle, client: FetchingClient) -> None:
        """Binds the config URL and the node to the key of the first client that uses the URL.

        Raises ArmError for another client, for a URL of an earlier attempt, and if the node lives on another machine.
        """

        async def write(node: Node | None) -> None:
            if node:
                await self._admit(node, client, bundle.expires)
                keys, thumbprint, now = node.join.keys, client.thumbprint, self.context.now()
                events = []
                if not keys.is_valid(thumbprint):
                    detail = {"key": thumbprint, "machine": client.shown_machine, "before": keys.current}
                    events = [client.event(now, AuditAction.KEY_BOUND, _resource(node), **detail)]
                machines = node.join.machines.fetched(thumbprint, client.machine, now)
                join = node.join.with_machines(machines).with_keys(keys.bound(thumbprint, now))
                if join != node.join:
                    await self.context.put_join(node, join, events)

        await self.context.change_node(bundle.cluster, bundle.node, write, busy=node_busy)

    async def _admit(self, node: Node, client: FetchingClient, url_expires: float) -> None:
        """Raises ArmError unless the client may be the node, and records it."""
        machine, thumbprint = client.machine, client.thumbprint
        machines, keys, now = node.join.machines, node.join.keys, self.context.now()
        if keys.use_of(thumbprint) is KeyUse.REVOKED:
            await self._record(node, client, key=thumbprint)
            raise revoked_at_fetch(node.name)
        if not (keys.is_valid(thumbprint) and machines.was_fetched_by(thumbprint, machine)):
            if not node.join.has_valid_url(now) or node.join.url_expires != url_expires:
                raise errors.config_url_not_found()  # it was revoked or replaced since the bundle was read
            if machines.fetch_key:
                await self._refuse_second_client(node, client)
        owner = None if machines.is_replacing(now) else await self.living_owner(node)
        if owner and (machine is None or machine.id != owner.id):
            await self._record(node, client, owner=str(owner.identity))
            raise on_another_machine(node.name, owner)
        if owner and keys.current and not keys.is_valid(thumbprint):
            await self._record(node, client, key=thumbprint, owner=keys.current)
            raise other_key(node.name)

    async def _refuse_second_client(self, node: Node, client: FetchingClient) -> NoReturn:
        """Records a second client of a config URL, for the audit log and the condition of the node."""
        now, before = self.context.now(), node.join.machines
        after = before.fetch_refused(f"{client}, from {client.source}", now)
        if after != before:
            first = {"machine": before.fetch_machine, "key": before.fetch_key}
            detail = {"machine": client.shown_machine, "key": client.thumbprint, "first": first}
            event = client.event(now, AuditAction.CONFIG_URL_REUSED, _resource(node), **detail)
            await self.context.put_join(node, node.join.with_machines(after), [event.denied()])
        machines = (before.candidate, before.owner)
        used_on = next((known for known in machines if known and known.id == before.fetch_machine), None)
        raise already_used(node.name, used_on)

    async def on_key_used(self, cluster: str, key: str, thumbprint: str) -> None:
        """Makes the next key of a node its current one, at its first use."""

        async def write(node: Node | None) -> None:
            if node is None:
                return
            join = node.join.with_keys(node.join.keys.used(thumbprint, self.context.now()))
            if join != node.join:
                await self.context.put_join(node, join)

        await self.context.change_node(cluster, key, write, busy=node_busy)

    async def on_report(self, node: Node, machine: MachineIdentity, origin: RequestContext) -> Node:
        """Checks the machine of a poll or a report, and returns the updated node. Raises ArmError to refuse it."""

        async def write(found: Node | None) -> Node:
            if found is None:
                return node
            machines, now = found.join.machines, self.context.now()
            claim = machines.claim(machine, now)
            if claim is Claim.CONFLICT and found.join.has_valid_url(now) and not await self.living_owner(found):
                claim = Claim.FREE  # an operator has created a join command, and the earlier machine is gone
            if claim is Claim.FREE and await self._lives_elsewhere(found, machine):
                claim = Claim.CONFLICT
            match claim:
                case Claim.OWNER:
                    return await self._put(found, machines.owner_heard(machine, now))
                case Claim.FREE:
                    after = machines.promoted(machine, now)
                    return await self._put(found, after, _moved_event(origin, found, after, now))
                case Claim.REPLACED:
                    raise replaced(found.name, machines.owner)
                case Claim.CONFLICT:  # audited once, and not for every poll
                    what = AuditAction.MACHINE_CONFLICT
                    event = None if machines.conflict else _event(origin, found, what, now, machine, machines)
                    await self._put(found, machines.claimed_by(machine, now), event)
                    raise on_another_machine(found.name, machines.owner)

        return await self.context.change_node(node.cluster, node.key, write, busy=node_busy, known=node)

    async def on_observed(self, cluster: str, key: str, machine: MachineIdentity, origin: RequestContext) -> None:
        """Records the machine that the cluster reports for the Node of a joined node."""

        async def write(node: Node | None) -> None:
            if node is None or not node.join.is_joined:
                return
            now, before = self.context.now(), node.join.machines
            after = before.observed(machine, now)
            event = _moved_event(origin, node, after, now)
            if event is None and after.conflict and not before.conflict:
                event = _event(origin, node, AuditAction.MACHINE_CONFLICT, now, after.conflict.identity, after)
            await self._put(node, after, event)

        await self.context.change_node(cluster, key, write, busy=node_busy)

    async def _put(self, node: Node, machines: MachineOwnership, event: AuditEvent | None = None) -> Node:
        """Writes the machines of a node, the condition that shows a conflict, and the mark on a Node that moved."""
        join, before = node.join.with_machines(machines), node.join.machines
        if join == node.join:
            return node
        after = await self.context.put_join(node, join, [event] if event else [])
        if machines.conflict != before.conflict:
            await self._show_conflict(after)
        moved = machines.owner and before.owner and machines.owner.id != before.owner.id
        if machines.owner and (moved or (machines.conflict and not before.conflict)):
            await self.context.clusters.mark_machine(node.cluster, node.key, machines.owner.id)
        return await self.context.store.node(node.cluster, node.key) or after

    async def _show_conflict(self, node: Node) -> None:
        async def write(found: Node | None) -> None:
            if found is None:
                return
            status = with_conflict(found.status, found.join.machines, found.name, self.context.now())
            if status != found.status:
                await self.context.put_status(found, status, found.last_seen)

        await self.context.change_node(node.cluster, node.key, write, busy=node_busy)

    async def _record(self, node: Node, client: FetchingClient, **detail: object) -> None:
        """Records a refused fetch, and counts those that follow from the same address."""
        now, machine = self.context.now(), client.shown_machine
        event = client.event(now, AuditAction.MACHINE_REFUSED, _resource(node), machine=machine, **detail)
        await self.refusals.record(self.context.store, event.denied())


def with_conflict(status: Document, machines: MachineOwnership, name: str, now: float) -> Document:
    """Returns the status with the condition of a conflict, or without it when the conflict is over."""
    other, owner = machines.conflict, machines.owner
    if other is None:
        others = [each for each in status.get("conditions", ()) if each["type"] != CONFLICT_CONDITION]
        return {**status, "conditions": others} if "conditions" in status else status
    where = f" It lives on {owner.identity}." if owner else ""
    message = (
        f"The machine {other.identity} also runs as node {name}.{where} Run `aks-flex-node unbootstrap` on the "
        "machine that is not to be this node, and join it as a node of its own."
    )
    return with_condition(status, condition(CONFLICT_CONDITION, "TwoMachines", message, now))


def _moved_event(origin: RequestContext, node: Node, after: MachineOwnership, now: float) -> AuditEvent | None:
    before, owner = node.join.machines.owner, after.owner
    if before is None or owner is None or before.id == owner.id:
        return None
    return _event(origin, node, AuditAction.MACHINE_CHANGED, now, owner.identity, node.join.machines)


def _event(
    origin: RequestContext,
    node: Node,
    what: AuditAction,
    now: float,
    machine: MachineIdentity,
    known: MachineOwnership,
) -> AuditEvent:
    owner = known.owner.identity.to_document() if known.owner else {}
    return origin.event(now, what, _resource(node), machine=machine.to_document(), before=owner)


def _resource(node: Node) -> str:
    return record_resource((node.cluster, node.name))


def refusal(code: str, message: str) -> ArmError:
    """Returns the error for a machine or a key that may not be the node."""
    return ArmError(409, code, message)


def on_another_machine(name: str, other: KnownMachine | None) -> ArmError:
    where = f"lives on the machine {other.identity}" if other else "lives on another machine"
    return refusal(
        ON_ANOTHER_MACHINE,
        f"Node {name} {where}. Create another node for this machine, or move node {name} to this machine with the "
        f"join command of `aks-flex-rp node join-command --name {name} --replace`.",
    )


def revoked_at_fetch(name: str) -> ArmError:
    return refusal(NODE_KEY_REVOKED, f"The key of this machine was revoked for node {name}.")


def not_released(name: str) -> ArmError:
    """Returns the error for a key that may not take the node over, or not any more."""
    return refusal(
        CLONED,
        f"Node {name} has another key than this machine, and was not released since it got that key.",
    )


def other_key(name: str) -> ArmError:
    return refusal(
        CONFIG_URL_TAKEN,
        f"Node {name} is alive and has another key than this client. Create another node for this machine, or give "
        f"node {name} to it with the join command of `aks-flex-rp node join-command --name {name} --replace`.",
    )


def already_used(name: str, first: KnownMachine | None) -> ArmError:
    where = f"the machine {first.identity}" if first else "another client"
    return refusal(
        CONFIG_URL_TAKEN,
        f"The config URL of node {name} was first used by {where}, and works only there. Create another node for "
        f"this machine, or a new URL with `aks-flex-rp node join-command --name {name} --replace`.",
    )


def replaced(name: str, other: KnownMachine | None) -> ArmError:
    where = f" to the machine {other.identity}" if other else ""
    return refusal(REPLACED, f"Node {name} was moved{where}. This machine is no longer node {name}.")
