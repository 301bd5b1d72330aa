"""Creates, lists and revokes enrolments, and decides about their machines: approve, reject, release a node.

The URL of an enrolment is returned once, when it is created. The store has the hash of its secret only.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from aks_flex_node.api import config_urls
from aks_flex_node.api.enrolments import ENROLMENT_PATH, NOT_FOUND
from aks_flex_node.api.node_keys import fingerprint
from aks_flex_rp.arm import errors
from aks_flex_rp.arm.errors import ArmError
from aks_flex_rp.delivery.config_url import SECRET_BYTES, delivery_id
from aks_flex_rp.nodes.node_builder import system_data
from aks_flex_rp.resource.enrolment_rules import new_enrolment
from aks_flex_rp.store.model import AuditAction, Conflict
from aks_flex_rp.store.pool_model import Enrolment, MachinePage, MachineState

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from aks_flex_rp.nodes.context import ClusterInfo, NodeContext, RequestContext
    from aks_flex_rp.store.model import Node
    from aks_flex_rp.store.pool_model import EnrolledMachine, Pool

T = TypeVar("T")
AT_ONCE = 500  # machines per read from the store
ALPHABET = "abcdefghjkmnpqrstuvwxyz23456789"


def enrolment_not_found(pool: str, key: str) -> ArmError:
    message = f"The pool '{pool}' has no enrolment '{key[:80]}'. List them with `aks-flex-rp pool enrolment list`."
    return ArmError(404, NOT_FOUND, message)


def not_enrolled(name: str, why: str) -> ArmError:
    remedy = (
        "To give it to another machine, run the join command of "
        f"`aks-flex-rp node join-command --name {name} --replace` there."
    )
    return ArmError(409, "NodeNotEnrolled", f"{why} {remedy}")


@dataclass(frozen=True)
class EnrolmentCommands:
    context: NodeContext
    origin: str  # URL of the service
    pin: Callable[[], str]  # of its private CA, if any

    async def create(
        self, cluster: ClusterInfo, pool: Pool, body: dict[str, Any], request: RequestContext
    ) -> tuple[Enrolment, str]:
        """Creates an enrolment. Returns it with its URL."""
        now = self.context.now()
        secret, key = secrets.token_urlsafe(SECRET_BYTES), "".join(secrets.choice(ALPHABET) for _ in range(8))
        system = system_data(None, request.caller, now)
        enrolment = new_enrolment(body, cluster.key, pool.key, key, delivery_id(secret), system, now)
        event = request.event(
            now,
            AuditAction.ENROLMENT_CREATED,
            resource_id(cluster, enrolment),
            maxUses=enrolment.max_uses,
            approval=enrolment.approval.value,
            nodeName=enrolment.node_name,
            allowed=len(enrolment.allow),
        )
        try:
            written = await self.context.store.create_enrolment(enrolment, [event])
        except Conflict:
            raise errors.pool_not_found(cluster.id, pool.key) from None
        return written, config_urls.build(self.origin, secret, self.pin(), ENROLMENT_PATH)

    async def get(self, cluster: ClusterInfo, pool: str, key: str) -> Enrolment:
        """Returns an enrolment. Raises ArmError if there is none."""
        found = await self.context.store.enrolment(cluster.key, key.lower())
        if found is None or found.pool != pool:
            raise enrolment_not_found(pool, key)
        return found

    async def waiting(self, enrolment: Enrolment) -> int:
        return await self.context.store.count_machines(enrolment, MachineState.WAITING.value)

    async def machines(self, enrolment: Enrolment, after: str = "") -> MachinePage:
        """Returns machines of an enrolment: first those without a node, of which those that wait come first, then the
        others in the order of their keys.
        """
        undecided = [] if after else [each async for each in self._each_machine(enrolment, enrolled=False)]
        undecided.sort(key=lambda each: (each.state is not MachineState.WAITING, -each.first))
        page = await self.context.store.machines(enrolment.cluster, enrolment.key, after, AT_ONCE, enrolled=True)
        return MachinePage((*undecided, *page.machines), page.after)

    async def revoke(self, cluster: ClusterInfo, pool: str, key: str, request: RequestContext) -> Enrolment:
        """Ends an enrolment. Nodes that have joined with it stay as they are."""

        async def write(enrolment: Enrolment | None) -> Enrolment:
            if enrolment is None or enrolment.revoked:
                return enrolment or await self.get(cluster, pool, key)
            now = self.context.now()
            event = request.event(
                now, AuditAction.ENROLMENT_REVOKED, resource_id(cluster, enrolment), uses=enrolment.uses
            )
            return await self.context.store.put_enrolment(replace(enrolment, revoked=now), [event])

        return await self._update(cluster, pool, key, write)

    async def decide(
        self, cluster: ClusterInfo, pool: str, key: str, shown: str, request: RequestContext, *, approve: bool
    ) -> EnrolledMachine:
        """Approves or rejects a machine by the fingerprint of its key."""
        after = MachineState.APPROVED if approve else MachineState.REJECTED

        async def write(enrolment: Enrolment | None) -> EnrolledMachine:
            found = enrolment or await self.get(cluster, pool, key)
            machine = await self._by_fingerprint(found, shown)
            if machine.state is after or (approve and machine.state.has_node):
                return machine
            if machine.state.has_node:
                message = (
                    f"The machine {fingerprint(machine.thumbprint)} is enrolled as node {machine.node}. To remove "
                    f"it, delete the node with `aks-flex-rp node delete --name {machine.node}`."
                )
                raise ArmError(409, "MachineEnrolled", message, "fingerprint")
            now = self.context.now()
            if approve and (found.revoked or now >= found.expires):
                why = "was revoked" if found.revoked else "has expired"
                message = (
                    f"The enrolment {found.key} {why}, so no machine can enrol with it. Create another one with "
                    f"`aks-flex-rp pool enrolment create --pool {pool} --max-uses N`."
                )
                raise ArmError(409, "EnrolmentEnded", message)
            what = AuditAction.MACHINE_APPROVED if approve else AuditAction.MACHINE_REJECTED
            detail = {"fingerprint": fingerprint(machine.thumbprint), "facts": machine.facts}
            event = request.event(now, what, resource_id(cluster, found), **detail, address=machine.address)
            decided = replace(machine, state=after, changed=now, by=request.caller.name)
            return await self.context.store.put_machine(found, decided, [event])

        return await self._update(cluster, pool, key, write)

    async def release(self, cluster: ClusterInfo, name: str, request: RequestContext) -> EnrolledMachine:
        """Lets another key of the same machine take over its node, after the disk was wiped."""
        store = self.context.store
        known = await store.machine_of_node(cluster.key, name.lower())
        if known is None:
            if await store.node(cluster.key, name.lower()) is None:
                raise await self.context.missing_node(cluster, name, request)
            raise not_enrolled(name, f"Node {name} was not enrolled.")

        async def write(enrolment: Enrolment | None) -> EnrolledMachine:
            machine = await store.machine_of_node(cluster.key, name.lower())
            if machine is None or enrolment is None:
                raise errors.concurrent_changes(name)
            node = await store.node(cluster.key, name.lower())
            if node and _has_moved(node, machine):
                raise not_enrolled(name, f"Node {name} was given to another machine since it enrolled.")
            if not machine.system_uuid:
                raise not_enrolled(
                    name, f"The machine of node {name} sent no system UUID, by which it would be recognized."
                )
            key = node.join.keys.generation if node else ""
            if machine.state is MachineState.RELEASED and machine.released_key == key:
                return machine
            now = self.context.now()
            event = request.event(
                now, AuditAction.NODE_RELEASED, cluster.id.node(name), fingerprint=fingerprint(machine.thumbprint)
            )
            by = request.caller.name
            released = replace(machine, state=MachineState.RELEASED, changed=now, by=by, released_key=key)
            return await store.put_machine(enrolment, released, [event])

        return await self._update(cluster, known.pool, known.enrolment, write)

    async def _by_fingerprint(self, enrolment: Enrolment, shown: str) -> EnrolledMachine:
        asked = shown.strip().lower().replace("-", "")
        for enrolled in (False, True):
            async for machine in self._each_machine(enrolment, enrolled=enrolled):
                if fingerprint(machine.thumbprint).replace("-", "") == asked:
                    return machine
        message = (
            f"No machine of the enrolment {enrolment.key} has the fingerprint '{shown[:40]}'. List them with "
            f"`aks-flex-rp pool enrolment machines --pool {enrolment.pool} --id {enrolment.key}`."
        )
        raise ArmError(404, "MachineNotFound", message, "fingerprint")

    async def _each_machine(self, enrolment: Enrolment, *, enrolled: bool) -> AsyncIterator[EnrolledMachine]:
        after: str | None = ""
        while after is not None:
            key = (enrolment.cluster, enrolment.key, after, AT_ONCE)
            page = await self.context.store.machines(*key, enrolled=enrolled)
            for machine in page.machines:
                yield machine
            after = page.after

    async def _update(
        self, cluster: ClusterInfo, pool: str, key: str, change: Callable[[Enrolment | None], Awaitable[T]]
    ) -> T:
        await self.get(cluster, pool, key)  # of this pool
        return await self.context.change_enrolment(cluster.key, key.lower(), change)


def _has_moved(node: Node, machine: EnrolledMachine) -> bool:
    """Returns whether the node lives on another machine than the one that enrolled."""
    machines, current = node.join.machines, node.join.keys.current
    if machine.state is MachineState.REPLACING:  # it is not the node's machine yet
        return current not in {"", machine.thumbprint} and node.join.keys.generation != machine.released_key
    ids = {each.id for each in (machines.owner, machines.candidate) if each}
    return bool(machines.owner and machine.machine_id) and machine.machine_id not in ids


def resource_id(cluster: ClusterInfo, enrolment: Enrolment) -> str:
    return f"{cluster.id.pool(enrolment.pool)}/enrolments/{enrolment.key}"
