"""Creates the node of a machine that has taken a use of an enrolment, or continues with it, and gives the use back if
the node cannot be created.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from aks_flex_node.api import enrolments as wire
from aks_flex_node.api.node_keys import fingerprint
from aks_flex_node.errors import ClusterError, FlexError
from aks_flex_rp.arm.errors import ArmError
from aks_flex_rp.arm.ids import parse_cluster_id
from aks_flex_rp.callers import Caller, CallerKind
from aks_flex_rp.node_keys import KeyUse
from aks_flex_rp.nodes.commands import EnrollingClient
from aks_flex_rp.nodes.conflict_retry import node_busy
from aks_flex_rp.nodes.context import RequestContext
from aks_flex_rp.nodes.machine_claims import not_released, refusal, revoked_at_fetch
from aks_flex_rp.nodes.preconditions import Preconditions
from aks_flex_rp.resource import enrolment_rules
from aks_flex_rp.store.model import AuditAction
from aks_flex_rp.store.pool_model import ApprovalMode, MachineState

if TYPE_CHECKING:
    from aks_flex_node.api.enrolments import MachineFacts
    from aks_flex_node.api.machine_identity import MachineIdentity
    from aks_flex_rp.nodes.commands import NodeCommands, WriteResult
    from aks_flex_rp.nodes.context import ClusterInfo
    from aks_flex_rp.store.model import AuditEvent
    from aks_flex_rp.store.pool_model import EnrolledMachine, Enrolment

EXISTS = 412  # the node was created by another client
TRANSIENT = frozenset({408, 409, 429})  # the same request may succeed later


@dataclass(frozen=True)
class MachineRequest:
    """A machine that asks to be enrolled, and has proved that it has its key."""

    thumbprint: str
    facts: MachineFacts
    machine: MachineIdentity | None
    source: str
    request_id: str

    @property
    def system_uuid(self) -> str:
        return wire.normalized_uuid(self.facts.system_uuid)

    def context(self, enrolment: Enrolment) -> RequestContext:
        """Returns the request as which the node is written. The machine may see the secrets of its own node."""
        caller = Caller(self.thumbprint, f"enrolment {enrolment.pool}/{enrolment.key}", CallerKind.NODE_KEY)
        return RequestContext(caller, self.request_id, self.source, may_see_secrets=True)

    def event(self, now: float, enrolment: Enrolment, what: AuditAction, **detail: object) -> AuditEvent:
        cluster = parse_cluster_id(enrolment.cluster)
        above = cluster.pool(enrolment.pool) if cluster else enrolment.cluster
        shown = {"fingerprint": fingerprint(self.thumbprint), "facts": self.facts.to_document()}
        return self.context(enrolment).event(now, what, f"{above}/enrolments/{enrolment.key}", **shown, **detail)


@dataclass(frozen=True)
class MachineProvisioner:
    commands: NodeCommands

    async def provision(
        self, cluster: ClusterInfo, enrolment: Enrolment, machine: EnrolledMachine, machine_request: MachineRequest
    ) -> WriteResult | None:
        """Creates the node of a machine, or continues with it. Returns None if another number must be taken."""
        store, request = self.commands.context.store, machine_request.context(enrolment)
        replacing = machine.state is MachineState.REPLACING
        client = EnrollingClient(
            machine_request.thumbprint,
            machine_request.machine,
            machine.released_key if replacing else None,
        )
        node = await store.node(machine.cluster, machine.node)
        if node is None:
            try:
                await self._check_not_revoked(enrolment)
            except ArmError:
                await self._give_back(enrolment, machine, machine_request)
                raise
            created = await self._create(cluster, enrolment, machine, client, machine_request)
            if isinstance(created, Created):
                return created.result
            node = await store.node(machine.cluster, machine.node)
        use = node.join.keys.use_of(machine_request.thumbprint) if node else KeyUse.UNKNOWN
        if use is KeyUse.REVOKED:
            raise revoked_at_fetch(machine.node)
        if replacing:
            if use is KeyUse.UNKNOWN:
                await self._check_not_revoked(enrolment)
            return await self._replace(cluster, machine, client, request)
        if node is None or use not in {KeyUse.CURRENT, KeyUse.NEXT}:
            if node and node.join.keys.enrolled:  # it was created with this use, and has another key since
                raise not_released(node.name)
            await self._give_up_name(enrolment, machine, machine_request)
            return None
        owner = await self.commands.claims.living_owner(node) if node.join.is_joined else None
        # The machine may have just taken over a released node, and not joined as it yet.
        machines = node.join.machines
        is_bound = machines.fetch_key == machine_request.thumbprint
        takes_over = is_bound and machines.is_replacing(self.commands.context.now())
        if owner and not takes_over:
            raise refusal(
                wire.CLONED,
                f"Node {node.name} has the key of this machine, and is alive on the machine {owner.identity}.",
            )
        return await self.commands.regenerate(cluster, node.name, request, replacing=takes_over, enrolling=client)

    async def _create(
        self,
        cluster: ClusterInfo,
        enrolment: Enrolment,
        machine: EnrolledMachine,
        client: EnrollingClient,
        machine_request: MachineRequest,
    ) -> Created | None:
        """Creates the node. Returns None if another client has created it. If it cannot be created, the use is given
        back: the machine may come with another key, which would not get it.
        """
        if await self._lives_elsewhere(machine, client):
            await self._give_up_name(enrolment, machine, machine_request)
            return Created(None)
        request, body = machine_request.context(enrolment), {"properties": {"poolName": enrolment.pool}}
        try:
            result = await self.commands.put(
                cluster, machine.node, body, Preconditions(if_none_match="*"), request, url=True, enrolling=client
            )
        except ArmError as error:
            if error.status == EXISTS:
                return None
            if error.status < 500 and error.status not in TRANSIENT:
                await self._give_back(enrolment, machine, machine_request)
            raise
        except ClusterError as error:
            if error.name != "node-name-taken":
                raise
            await self._give_up_name(enrolment, machine, machine_request)
            return Created(None)
        try:
            await self._check_not_revoked(enrolment)
        except ArmError:  # it was revoked during the write
            await self.commands.delete(cluster, machine.node, Preconditions(), request)
            raise
        return Created(result)

    async def _lives_elsewhere(self, machine: EnrolledMachine, client: EnrollingClient) -> bool:
        """Returns whether another machine is Ready as a Node of this name, which has no record: the provider was
        restored from a backup.
        """
        try:
            found = await self.commands.context.clusters.node_machine(machine.cluster, machine.node)
        except FlexError:
            return False  # creating the token fails as well, or tells more
        own = client.machine.id if client.machine else ""
        return found is not None and found.ready and found.machine.id != own

    async def _check_not_revoked(self, enrolment: Enrolment) -> None:
        """Raises ArmError if the enrolment was revoked since the machine was claimed."""
        found = await self.commands.context.store.enrolment(enrolment.cluster, enrolment.key)
        if found is None or found.revoked:
            raise refusal(wire.REVOKED, f"The enrolment {enrolment.key} was revoked.")

    async def _replace(
        self, cluster: ClusterInfo, machine: EnrolledMachine, client: EnrollingClient, request: RequestContext
    ) -> WriteResult:
        result = await self.commands.regenerate(cluster, machine.node, request, replacing=True, enrolling=client)
        store = self.commands.context.store

        async def complete(enrolment: Enrolment | None) -> None:
            found = await store.machine(machine.cluster, machine.enrolment, machine.thumbprint)
            if enrolment and found and found.state is MachineState.REPLACING:
                # Only if the row still exists: it ends with its node.
                await store.put_machine(enrolment, replace(found, state=MachineState.CLAIMED), replaces=found)

        await self.commands.context.change_enrolment(
            machine.cluster, machine.enrolment, complete, lambda _: node_busy(machine.node)
        )
        return result

    async def _give_up_name(
        self, enrolment: Enrolment, machine: EnrolledMachine, machine_request: MachineRequest
    ) -> None:
        """Gives the use of a machine back whose name is taken. Raises ArmError unless another number can be taken."""
        await self._give_back(enrolment, machine, machine_request)
        if not enrolment_rules.is_numbered(enrolment.node_name):
            raise refusal(wire.NAME_TAKEN, f"The node name {machine.node} is taken.")

    async def _give_back(
        self, enrolment: Enrolment, machine: EnrolledMachine, machine_request: MachineRequest
    ) -> None:
        store, now = self.commands.context.store, self.commands.context.now()

        async def undo(found: Enrolment | None) -> None:
            known = await store.machine(machine.cluster, machine.enrolment, machine.thumbprint)
            if not found or not known or known.node != machine.node or known.state is not MachineState.CLAIMED:
                return
            given = replace(found, uses=max(0, found.uses - 1))
            what, detail = AuditAction.MACHINE_NOT_ENROLLED, {"node": machine.node, "use": found.uses}
            event = machine_request.event(now, enrolment, what, **detail)
            if found.approval is ApprovalMode.MANUAL:
                await store.put_machine(given, replace(known, node="", state=MachineState.APPROVED), [event])
            else:
                await store.delete_machine(given, known, [event])

        await self.commands.context.change_enrolment(
            machine.cluster, machine.enrolment, undo, lambda _: node_busy(machine.node)
        )


@dataclass(frozen=True)
class Created:
    result: WriteResult | None  # None if another number must be taken
