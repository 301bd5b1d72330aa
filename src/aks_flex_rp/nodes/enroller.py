"""Enrols machines: takes a use and a name in one write, creates the node with the key of the machine, and returns its
configuration.

Each step can be interrupted. The claim is one transaction with the enrolment, so no use is taken twice or lost. A
machine that comes back with the same key continues where it was: its row says which node is its own, and the node
says whether its key is bound.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from aks_flex_node.api import enrolments as wire
from aks_flex_node.api.arm_errors import NODE_KEY_REVOKED
from aks_flex_node.api.node_keys import fingerprint
from aks_flex_node.errors import ClusterError, FlexError
from aks_flex_rp.arm import errors
from aks_flex_rp.arm.errors import ArmError
from aks_flex_rp.arm.ids import parse_cluster_id
from aks_flex_rp.callers import Caller, CallerKind
from aks_flex_rp.counted_events import CountedEvents
from aks_flex_rp.delivery.config_url import delivery_id
from aks_flex_rp.node_keys import KeyUse
from aks_flex_rp.nodes.commands import EnrollingClient
from aks_flex_rp.nodes.context import RequestContext, node_busy
from aks_flex_rp.nodes.machine_claims import not_released, refusal, revoked_at_fetch
from aks_flex_rp.nodes.preconditions import Preconditions
from aks_flex_rp.resource import enrolment_rules
from aks_flex_rp.resource.enrolment_rules import NameInvalidError
from aks_flex_rp.store.model import AuditAction
from aks_flex_rp.store.pool_model import ApprovalMode, EnrolledMachine, MachineState

if TYPE_CHECKING:
    from aks_flex_node.api.enrolments import MachineFacts
    from aks_flex_node.api.machine_identity import MachineIdentity
    from aks_flex_rp.nodes.commands import NodeCommands, WriteResult
    from aks_flex_rp.nodes.context import ClusterInfo, NodeContext
    from aks_flex_rp.store.model import AuditEvent, Node
    from aks_flex_rp.store.pool_model import Enrolment


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
    """Creates the node of a machine that has taken a use of an enrolment, or continues with it. Gives the use back if
    the node cannot be created.
    """

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


MAX_WAITING = 1000  # machines that wait for an approval of one enrolment
WAIT_SECONDS = 5  # between requests of a machine that waits
NAMING_FACTS = ("hostname", "serialNumber", "systemUuid")
RECORDED_REFUSALS = wire.REFUSALS | {NODE_KEY_REVOKED}
NAME_ATTEMPTS = 200  # numbers that a request skips because other nodes have them


@dataclass(frozen=True)
class Enrolled:
    bundle: bytes
    cluster: ClusterInfo
    node: Node


@dataclass(frozen=True)
class Waiting:
    fingerprint: str


@dataclass(frozen=True)
class Enroller:
    commands: NodeCommands
    refusals: CountedEvents = field(default_factory=CountedEvents)
    locks: WeakValueDictionary[tuple[str, str], asyncio.Lock] = field(default_factory=WeakValueDictionary)

    @property
    def context(self) -> NodeContext:
        return self.commands.context

    async def find(self, secret: str) -> Enrolment | None:
        return await self.context.store.enrolment_by_secret(delivery_id(secret))

    async def enrol(self, enrolment: Enrolment, machine_request: MachineRequest) -> Enrolled | Waiting:
        """Makes the machine a node of the pool. Raises ArmError, and records it, if it is refused."""
        try:
            return await self._enrol(enrolment, machine_request)
        except ArmError as error:
            if error.code in RECORDED_REFUSALS:
                detail = {"reason": error.code, "message": error.message}
                event = self._event(enrolment, machine_request, AuditAction.ENROLMENT_REFUSED, **detail)
                await self.refusals.record(self.context.store, event.denied(), error.code)
            raise

    async def _enrol(self, enrolment: Enrolment, machine_request: MachineRequest) -> Enrolled | Waiting:
        cluster = await self.context.clusters.find(enrolment.cluster)
        if cluster is None or await self.context.store.pool(enrolment.cluster, enrolment.pool) is None:
            raise refusal(wire.REVOKED, f"The pool {enrolment.pool} of this enrolment does not exist any more.")
        for _ in range(NAME_ATTEMPTS):
            found = await self._decide(enrolment, machine_request)
            if found.state is MachineState.WAITING:
                return Waiting(fingerprint(found.thumbprint))
            result = await MachineProvisioner(self.commands).provision(cluster, enrolment, found, machine_request)
            if result:
                return Enrolled(result.bundle, cluster, result.node)
        raise refusal(wire.NAME_TAKEN, f"All numbers of {enrolment.node_name} that were tried are taken.")

    async def node_of(self, enrolment: Enrolment, thumbprint: str) -> str:
        """Returns the node of a machine that reports why it could not join. Raises ArmError if it has none."""
        found = await self.context.store.machine(enrolment.cluster, enrolment.key, thumbprint)
        if found is None or not found.node:
            raise ArmError(404, "MachineNotFound", "This machine has not enrolled.")
        return found.node

    # The claim

    async def _decide(self, enrolment: Enrolment, machine_request: MachineRequest) -> EnrolledMachine:
        """Returns the machine as it waits, or with the name of its node."""
        key = (enrolment.cluster, enrolment.key)
        lock = self.locks.setdefault(key, asyncio.Lock())
        async with lock:  # so that the machines of one replica do not conflict with each other
            return await self.context.change_enrolment(*key, lambda found: self._claim(found, machine_request))

    async def _claim(self, enrolment: Enrolment | None, machine_request: MachineRequest) -> EnrolledMachine:
        store, now = self.context.store, self.context.now()
        if enrolment is None:
            raise refusal(wire.REVOKED, "The pool of this enrolment was deleted.")
        known = await store.machine(enrolment.cluster, enrolment.key, machine_request.thumbprint)
        if known and known.state is MachineState.REJECTED:
            raise refusal(wire.REJECTED, f"The machine with the key {fingerprint(known.thumbprint)} was rejected.")
        if known and known.state.has_node:
            return await self._claimed_before(enrolment, known, machine_request)
        self._check_open(enrolment, now)
        if enrolment.approval is ApprovalMode.ALLOW_LIST and not enrolment_rules.is_allowed(
            enrolment.allow, machine_request.facts
        ):
            raise refusal(wire.NOT_LISTED, "This machine is not on the allow list of the enrolment.")
        released = await self._released(enrolment, machine_request)
        if released is None and enrolment.uses >= enrolment.max_uses:
            uses = f"{enrolment.uses} of {enrolment.max_uses}"
            raise refusal(wire.EXHAUSTED, f"All uses of the enrolment {enrolment.key} are taken ({uses}).")
        if enrolment.approval is ApprovalMode.MANUAL and not _is_approved(known, machine_request):
            return await self._wait(enrolment, known, machine_request)
        if released:
            return await self._take_over(enrolment, known, released, machine_request)
        return await self._take_use(enrolment, known, machine_request)

    def _check_open(self, enrolment: Enrolment, now: float) -> None:
        if enrolment.revoked:
            raise refusal(wire.REVOKED, f"The enrolment {enrolment.key} was revoked.")
        if now >= enrolment.expires:
            raise refusal(wire.EXPIRED, f"The enrolment {enrolment.key} has expired.")

    async def _claimed_before(
        self, enrolment: Enrolment, known: EnrolledMachine, machine_request: MachineRequest
    ) -> EnrolledMachine:
        """Returns the claim of a machine that comes back. One with the same key and another system is a copy."""
        other_system = (
            known.system_uuid and machine_request.system_uuid and known.system_uuid != machine_request.system_uuid
        )
        other_machine = (
            known.machine_id and machine_request.machine and known.machine_id != machine_request.machine.id
        )
        released = known.state is MachineState.RELEASED
        if other_system or (other_machine and not released):
            raise refusal(
                wire.CLONED,
                f"Another machine has enrolled with the key of this one as node {known.node}: the disk of this "
                "machine is a copy.",
            )
        if not released:
            return known
        self._check_open(enrolment, self.context.now())
        node = await self.context.store.node(known.cluster, known.node)
        if node and node.join.keys.use_of(machine_request.thumbprint) in {KeyUse.FORMER, KeyUse.REVOKED}:
            raise revoked_at_fetch(known.node)  # the agent asks again with a new key
        if node and (node.pool is None or node.pool.name != enrolment.pool):
            raise not_released(known.node)
        again = self._machine(enrolment, known, machine_request, MachineState.REPLACING, known.node)
        what = AuditAction.MACHINE_ENROLLED
        event = self._event(enrolment, machine_request, what, node=known.node, replaces=True)
        return await self.context.store.put_machine(enrolment, again, [event])

    async def _released(self, enrolment: Enrolment, machine_request: MachineRequest) -> EnrolledMachine | None:
        """Returns the released machine of the pool with the same system UUID. Raises ArmError if one is enrolled.

        The system UUID is no secret, so the URL of another pool gives no right to the node.
        """
        if not machine_request.system_uuid:
            return None
        store, own = self.context.store, machine_request.thumbprint
        same_system = await store.machines_of_system(enrolment.cluster, machine_request.system_uuid)
        others = [other for other in same_system if other.thumbprint != own and other.state.has_node]
        for other in others:
            if other.state is not MachineState.RELEASED:
                raise refusal(
                    wire.CLONED,
                    f"A machine with the system UUID of this one is node {other.node}, and has another key.",
                )
        for other in others:
            node = await store.node(other.cluster, other.node)
            if node is None:
                return other
            if node.pool and node.pool.name == enrolment.pool:
                if node.join.keys.generation != other.released_key:
                    raise not_released(node.name)
                return other
        return None

    async def _wait(
        self, enrolment: Enrolment, known: EnrolledMachine | None, machine_request: MachineRequest
    ) -> EnrolledMachine:
        if known and known.state is MachineState.WAITING and _has_same_facts(known, machine_request):
            return known
        store = self.context.store
        if known is None and await store.count_machines(enrolment, MachineState.WAITING.value) >= MAX_WAITING:
            raise errors.too_many_requests(60)
        machine = self._machine(enrolment, known, machine_request, MachineState.WAITING, "")
        is_recorded = known is None or known.state is MachineState.APPROVED  # not each change of its facts
        event = self._event(enrolment, machine_request, AuditAction.MACHINE_WAITING)
        return await store.put_machine(enrolment, replace(machine, by=""), [event] if is_recorded else [])

    async def _take_use(
        self, enrolment: Enrolment, known: EnrolledMachine | None, machine_request: MachineRequest
    ) -> EnrolledMachine:
        name, number = await self._name(enrolment, machine_request)
        taken = replace(enrolment, uses=enrolment.uses + 1, number=number)
        machine = self._machine(enrolment, known, machine_request, MachineState.CLAIMED, name)
        event = self._event(enrolment, machine_request, AuditAction.MACHINE_ENROLLED, node=name, use=taken.uses)
        return await self.context.store.put_machine(taken, machine, [event])

    async def _name(self, enrolment: Enrolment, machine_request: MachineRequest) -> tuple[str, int]:
        """Returns the name of the node, and the highest number given."""
        numbered, number = enrolment_rules.is_numbered(enrolment.node_name), enrolment.number
        for _ in range(NAME_ATTEMPTS if numbered else 1):
            number += numbered
            try:
                name = enrolment_rules.node_name(enrolment.node_name, machine_request.facts, number)
            except NameInvalidError as error:
                raise refusal(wire.NAME_INVALID, str(error)) from None
            store, key = self.context.store, (enrolment.cluster, name)
            if not any(await asyncio.gather(store.node(*key), store.machine_of_node(*key))):
                return name, number
        if numbered:  # the next request goes on from here, so that others get their turn in between
            await self.context.store.put_enrolment(replace(enrolment, number=number))
            raise errors.too_many_requests(1)
        raise refusal(wire.NAME_TAKEN, f"The node name {name} is taken.")

    async def _take_over(
        self,
        enrolment: Enrolment,
        known: EnrolledMachine | None,
        released: EnrolledMachine,
        machine_request: MachineRequest,
    ) -> EnrolledMachine:
        """Gives the node of a released machine to its new key. That takes no use."""
        store = self.context.store
        if known:  # approved; if the process ends here, it waits for another approval
            enrolment = await store.delete_machine(enrolment, known)
        machine = self._machine(enrolment, released, machine_request, MachineState.REPLACING, released.node)
        what = AuditAction.MACHINE_ENROLLED
        event = self._event(enrolment, machine_request, what, node=released.node, replaces=True)
        return await store.put_machine(enrolment, replace(machine, version=0), [event], released)

    def _machine(
        self,
        enrolment: Enrolment,
        known: EnrolledMachine | None,
        machine_request: MachineRequest,
        state: MachineState,
        node: str,
    ) -> EnrolledMachine:
        now = self.context.now()
        return EnrolledMachine(
            enrolment.cluster,
            enrolment.pool,
            enrolment.key,
            machine_request.thumbprint,
            state,
            node,
            machine_request.system_uuid,
            machine_request.facts.to_document(),
            machine_request.machine.id if machine_request.machine else "",
            machine_request.source,
            known.first if known else now,
            now,
            known.by if known else "",
            known.version if known else 0,
            known.released_key if known else "",
        )

    # Audit

    def _event(
        self, enrolment: Enrolment, machine_request: MachineRequest, what: AuditAction, **detail: object
    ) -> AuditEvent:
        return machine_request.event(self.context.now(), enrolment, what, **detail)


def _is_approved(known: EnrolledMachine | None, machine_request: MachineRequest) -> bool:
    """Returns whether a person has approved the machine as it describes itself now."""
    return known is not None and known.state is MachineState.APPROVED and _has_same_facts(known, machine_request)


def _has_same_facts(known: EnrolledMachine, machine_request: MachineRequest) -> bool:
    """Returns whether the facts that name a machine are those that a person has seen."""
    now = machine_request.facts.to_document()
    return all(known.facts.get(each) == now.get(each) for each in NAMING_FACTS)
