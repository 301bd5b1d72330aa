"""Creates roll-outs, and takes the orders of people: pause, resume, abort, reverse, approve.

An order is stored with the roll-out. The replica that holds the lease carries it out within a second.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from aks_flex_rp.arm import errors
from aks_flex_rp.arm.errors import ArmError, Problem
from aks_flex_rp.nodes.context import retry_on_conflict
from aks_flex_rp.nodes.node_builder import current_versions, system_data
from aks_flex_rp.nodes.pool_operations import PoolCommands
from aks_flex_rp.nodes.rollout_guard import RolloutGuard, rollout_active
from aks_flex_rp.nodes.write_permissions import WriteChecks
from aks_flex_rp.resource.versions import is_older
from aks_flex_rp.rollouts.active_rollout import stored_node
from aks_flex_rp.rollouts.gate_specs import check_gates
from aks_flex_rp.rollouts.node_reports import node_labels, node_report
from aks_flex_rp.rollouts.spec import parse_rollout
from aks_flex_rp.rollouts.states import Phase, RolloutNode
from aks_flex_rp.rollouts.waits import awaited_approval
from aks_flex_rp.store.model import AuditAction, Conflict
from aks_flex_rp.store.pool_model import Heartbeat, StoredRollout

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from aks_flex_rp.nodes.context import ClusterInfo, NodeContext, RequestContext
    from aks_flex_rp.resource.validation import PoolTemplate
    from aks_flex_rp.rollout_settings import RolloutSettings
    from aks_flex_rp.rollouts.gate_runner import GateRunner
    from aks_flex_rp.rollouts.spec import RolloutProperties
    from aks_flex_rp.store.model import Node
    from aks_flex_rp.store.pool_model import Pool, PoolVersions

ORDER_SECONDS = 5.0  # that a request waits for its order to be carried out
MAX_ORDERS = 20  # that wait to be carried out: more come only while no replica steps roll-outs
ORDERS = {
    "pause": AuditAction.ROLLOUT_PAUSED,
    "resume": AuditAction.ROLLOUT_RESUMED,
    "abort": AuditAction.ROLLOUT_ABORTED,
    "reverse": AuditAction.ROLLOUT_REVERSED,
    "approve": AuditAction.ROLLOUT_APPROVED,
}


def rollout_not_found(pool: str, name: str) -> ArmError:
    listing = f"`aks-flex-rp rollout list --pool {pool}`"
    return ArmError(404, "RolloutNotFound", f"The pool '{pool}' has no roll-out '{name}'. List them with {listing}.")


@dataclass(frozen=True)
class RolloutCommands:
    context: NodeContext
    settings: RolloutSettings
    gates: GateRunner
    sleep: Callable[[float], Any] = field(default=asyncio.sleep)

    async def get(self, cluster: ClusterInfo, pool: str, name: str) -> StoredRollout:
        await PoolCommands(self.context).get(cluster, pool)
        found = await self.context.store.rollout(cluster.key, pool, name)
        if found is None:
            raise rollout_not_found(pool, name)
        return found

    async def create(
        self, cluster: ClusterInfo, pool_name: str, name: str, body: dict[str, Any], request: RequestContext
    ) -> tuple[StoredRollout, bool]:
        """Creates a roll-out. Returns it, and whether it is new. The same body again changes nothing."""
        pools = PoolCommands(self.context)
        pool = await pools.get(cluster, pool_name)
        wanted = await self._validate(cluster, body)
        existing = await self.context.store.rollout(cluster.key, pool.key, name)
        if existing:
            return self._same(existing, wanted), False
        revision = wanted.revision or pool.number
        template = await pools.template(pool, revision)
        resource = f"{cluster.id.pool(pool.key)}/rollouts/{name}"
        checks, what = WriteChecks(self.context), AuditAction.ROLLOUT_CREATED
        await checks.check_template(resource, pool.template, template.template, request, what)
        await RolloutGuard(self.context.store).check_revision(pool, template.template)
        active = await self.context.store.active_rollout(pool.cluster, pool.key)
        if active and not wanted.replace_active:
            raise rollout_active(pool.key, active.key)
        plan = wanted.model_copy(update={"revision": revision})
        nodes = await self._nodes(pool, plan)
        if not wanted.allow_downgrade:
            await self._check_versions(cluster, template, nodes)
        if active:
            note = f", who started '{name}' instead"
            ended = await self.order(cluster, active.pool, active.key, "abort", request, note=note)
            if ended.active:
                raise errors.concurrent_changes(active.key, "rollouts")
            nodes = await self._nodes(pool, plan)  # it may have changed them until its end
        await self._keep_stable(pool, nodes)
        made = await self._write(cluster, pool, name, plan, nodes, request)
        await self._close_earlier(made)
        return made, True

    async def order(
        self,
        cluster: ClusterInfo,
        pool: str,
        name: str,
        what: str,
        request: RequestContext,
        gate: str = "",
        note: str = "",
    ) -> StoredRollout:
        """Stores an order, and waits until it is carried out. Raises ArmError if it makes no sense now."""
        store, key = self.context.store, cluster.key

        async def write(found: StoredRollout | None) -> StoredRollout:
            if found is None:
                raise rollout_not_found(pool, name)
            nonlocal gate
            gate = _check_order(found, what, gate)  # a retry must not approve the gate after it
            orders = found.state.get("orders", [])
            if len(orders) >= MAX_ORDERS:
                raise errors.concurrent_changes(name, "rollouts")
            order = {"what": what, "by": f"{request.caller.name}{note}", "gate": gate}
            state = {**found.state, "orders": [*orders, order]}
            resource = f"{cluster.id.pool(pool)}/rollouts/{name}"
            event = request.event(self.context.now(), ORDERS[what], resource, **({"gate": gate} if gate else {}))
            if what == "reverse":
                await self._check_reversal(found)
            await self._check_permission(found, what, resource, request)
            ordered = replace(found, state=state, open=True, active=found.active or what == "reverse")
            return await store.put_rollout(ordered, events=[event])

        busy = errors.concurrent_changes(name, "rollouts")
        ordered = await retry_on_conflict(lambda: store.rollout(key, pool, name), write, lambda: busy)
        until = time.monotonic() + ORDER_SECONDS
        while ordered.state.get("orders") and time.monotonic() < until:
            await self.sleep(0.1)
            ordered = await store.rollout(key, pool, name) or ordered
        return ordered

    async def _check_reversal(self, rollout: StoredRollout) -> None:
        """Raises ArmError if the nodes cannot be brought back now."""
        store = self.context.store
        if not rollout.active:
            if active := await store.active_rollout(rollout.cluster, rollout.pool):
                raise rollout_active(rollout.pool, active.key)
            newest = (await store.rollouts(rollout.cluster, rollout.pool, limit=1))[0]
            if newest.number > rollout.number:
                message = f"The roll-out '{newest.key}' is newer than '{rollout.key}', so `reverse` is not possible."
                hint = "Start a roll-out of the earlier revision."
                raise ArmError(409, "RolloutStateConflict", f"{message} {hint}")

    async def _check_permission(
        self, rollout: StoredRollout, what: str, resource: str, request: RequestContext
    ) -> None:
        """Raises ArmError if only an owner may give nodes the revisions that they get after this order. What an owner
        has removed from the pool since then must not come back.
        """
        store = self.context.store
        pool = await store.pool(rollout.cluster, rollout.pool)
        if request.is_owner or pool is None or what not in {"resume", "reverse", "approve"}:
            return
        revisions = {int(rollout.spec["revision"])}
        if what == "reverse" or rollout.phase == Phase.REVERSING.value:
            revisions = {node.source for node in await store.rollout_nodes(rollout)}
        for revision in revisions:
            template = (await PoolCommands(self.context).revision(pool, revision)).template
            await WriteChecks(self.context).check_template(resource, pool.template, template, request, ORDERS[what])

    async def delete(self, cluster: ClusterInfo, pool: str, name: str, request: RequestContext) -> bool:
        await PoolCommands(self.context).get(cluster, pool)
        found = await self.context.store.rollout(cluster.key, pool, name)
        if found is None:
            return False
        if found.active:
            raise rollout_active(pool, name)
        resource = f"{cluster.id.pool(pool)}/rollouts/{name}"
        event = request.event(self.context.now(), AuditAction.ROLLOUT_DELETED, resource)
        try:
            await self.context.store.delete_rollout(found, [event])
        except Conflict:
            raise errors.concurrent_changes(name, "rollouts") from None
        return True

    async def allow_revision(
        self, cluster: ClusterInfo, pool_name: str, revision: int, request: RequestContext
    ) -> Pool:
        """Lifts the bar of a revision."""
        store = self.context.store
        pool = await PoolCommands(self.context).get(cluster, pool_name)

        async def write(found: PoolVersions | None) -> None:
            if found is None or not any(each.revision == revision for each in found.barred):
                message = f"Revision {revision} of the pool '{pool.key}' is not barred."
                raise ArmError(404, "RevisionNotBarred", message, "revision")
            resource = cluster.id.pool(pool.key)
            event = request.event(self.context.now(), AuditAction.REVISION_ALLOWED, resource, revision=revision)
            await store.put_pool_versions(found.without_barred(revision), [event])

        await retry_on_conflict(
            lambda: store.pool_versions(pool), write, lambda: errors.concurrent_changes(pool.key, "flexNodePools")
        )
        return pool

    async def _validate(self, cluster: ClusterInfo, body: dict[str, Any]) -> RolloutProperties:
        wanted = parse_rollout(body)
        problems = wanted if isinstance(wanted, list) else check_gates(wanted.gates, self.settings)
        if isinstance(wanted, list) or problems:
            raise errors.invalid_request(problems)
        if refused := await self.gates.check(cluster.key, wanted.gates):
            raise errors.invalid_request(refused)
        return wanted

    def _same(self, existing: StoredRollout, wanted: RolloutProperties) -> StoredRollout:
        spec = wanted.document()
        if not wanted.revision:
            spec["revision"] = existing.spec["revision"]
        if spec != existing.spec:
            message = f"The roll-out '{existing.key}' exists with other properties. Choose another name."
            raise ArmError(409, "RolloutExists", message)
        return existing

    async def _close_earlier(self, made: StoredRollout) -> None:
        """Ends the catching up of earlier roll-outs: nodes that return get the newest revision."""
        store = self.context.store
        for each in await store.rollouts(made.cluster, made.pool, made.number):
            if each.open and not each.active:
                with suppress(Conflict):  # the controller steps it: its nodes are given the newer revision afterwards
                    await store.put_rollout(replace(each, open=False))

    async def _nodes(self, pool: Pool, plan: RolloutProperties) -> list[RolloutNode]:
        """Returns the nodes of the roll-out in their waves: those of the pool that are not on the revision yet."""
        store, now = self.context.store, self.context.now()
        beats = await store.heartbeats(pool.cluster, pool.key)
        known: dict[str, tuple[Node, PlannedNode]] = {}
        async for node in store.each_node(pool.cluster, pool.key):
            labels = node_labels(node)
            if not (plan.node_selector or {}).items() <= labels.items():
                continue
            report = node_report(node, pool.key, beats.get(node.key, Heartbeat()), now)
            if report.desired == plan.revision and (report.applied or report.passive):
                continue
            known[node.key] = node, PlannedNode(node.key, labels, report.passive or report.offline)
        waves = plan_waves(plan, [planned for _, planned in known.values()])
        return [
            RolloutNode(name, wave, node.pool.revision if node.pool else 0, domain=plan.domain_of(planned.labels))
            for wave, names in enumerate(waves)
            for name in names
            for node, planned in [known[name]]
        ]

    async def _check_versions(
        self, cluster: ClusterInfo, template: PoolTemplate, nodes: Sequence[RolloutNode]
    ) -> None:
        """Raises ArmError if nodes have newer versions, which they would keep. One of each revision is looked at."""
        for name in {node.source: node.name for node in nodes}.values():
            if (node := await self.context.store.node(cluster.key, name)) is None:
                continue
            known = current_versions(node)
            for part, wanted in (template.template.get("versions") or {}).items():
                if is_older(wanted, now := known.get(part, "")):
                    message = (
                        f"Revision {template.revision} has {part} {wanted}, which is older than {now} of the node "
                        f"'{node.name}'. If that is meant, set allowDowngrade to true (`--allow-downgrade`)."
                    )
                    raise errors.invalid_request([Problem("properties.allowDowngrade", message)])

    async def _keep_stable(self, pool: Pool, nodes: list[RolloutNode]) -> None:
        """Remembers what most nodes are on, so that new nodes do not get the revision before it has proved itself."""
        counts = Counter(node.source for node in nodes)

        async def write(found: PoolVersions | None) -> None:
            if found and not found.stable and counts:
                await self.context.store.put_pool_versions(replace(found, stable=counts.most_common(1)[0][0]))

        await retry_on_conflict(lambda: self.context.store.pool_versions(pool), write)

    async def _write(
        self,
        cluster: ClusterInfo,
        pool: Pool,
        name: str,
        plan: RolloutProperties,
        nodes: list[RolloutNode],
        request: RequestContext,
    ) -> StoredRollout:
        now = self.context.now()
        spec = plan.document()
        rollout = StoredRollout(
            pool.cluster,
            pool.key,
            name,
            int(now * 1_000_000),
            Phase.RUNNING.value,
            True,
            True,
            spec,
            {"nodes": len(nodes)},
            system=system_data(None, request.caller, now),
            created=now,
        )
        resource = f"{cluster.id.pool(pool.key)}/rollouts/{name}"
        event = request.event(now, AuditAction.ROLLOUT_CREATED, resource, revision=spec["revision"], nodes=len(nodes))
        await self.context.store.forget_rollouts(pool.cluster, pool.key, rollout.number - 3600 * 1_000_000)
        try:
            return await self.context.store.create_rollout(
                rollout, [stored_node(rollout, each) for each in nodes], [event]
            )
        except Conflict:
            active = await self.context.store.active_rollout(pool.cluster, pool.key)
            raise (
                rollout_active(pool.key, active.key) if active else errors.concurrent_changes(name, "rollouts")
            ) from None


def _check_order(rollout: StoredRollout, what: str, gate: str) -> str:
    """Returns the gate that an approval is about. Raises ArmError if the order makes no sense now."""
    phase = Phase(rollout.phase)
    allowed = {
        "pause": not phase.is_final,
        "resume": not phase.is_final,
        "abort": not phase.is_final,
        "reverse": phase in {Phase.RUNNING, Phase.SOAKING, Phase.GATES, Phase.HALTED, Phase.SUCCEEDED},
        "approve": phase is Phase.GATES,
    }
    if not allowed[what]:
        message = f"The roll-out '{rollout.key}' is {phase.value}, so `{what}` is not possible."
        raise ArmError(409, "RolloutStateConflict", message)
    if what != "approve":
        return ""
    waiting = awaited_approval(rollout)
    if not waiting or (gate and gate != waiting):
        message = f"No gate{f' {gate!r}' if gate else ''} of the roll-out '{rollout.key}' waits for an approval."
        raise ArmError(409, "RolloutStateConflict", message)
    return waiting


@dataclass(frozen=True)
class PlannedNode:
    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    late: bool = False  # belongs into the last wave: it is offline, or has no machine that could be updated


def plan_waves(plan: RolloutProperties, nodes: Iterable[PlannedNode]) -> list[list[str]]:
    """Returns the names of the nodes of each wave. The shares are cumulative, and the last wave has all that remain.

    Nodes with the labels of the canary come first. Nodes that show nothing about the revision come last. In between,
    nodes of different domains alternate, so that the budget of a domain seldom holds up the others.
    """
    known = sorted(nodes, key=lambda node: node.name)
    late = [node for node in known if node.late]
    able = [node for node in known if not node.late]
    canaries = [node for node in able if plan.canary_selector and plan.canary_selector.items() <= node.labels.items()]
    chosen = {node.name for node in canaries}
    order = [*canaries, *_alternating(plan, [node for node in able if node.name not in chosen]), *late]
    waves: list[list[str]] = []
    done = 0
    for number, share in enumerate(plan.waves, 1):
        end = len(order) if number == len(plan.waves) else min(share.of(len(order)), len(able))
        if number == 1 and canaries and len(plan.waves) > 1:
            end = min(end, len(canaries))
        waves.append([node.name for node in order[done:end]])
        done = max(done, end)
    return [wave for wave in waves if wave]


def _alternating(plan: RolloutProperties, nodes: Sequence[PlannedNode]) -> list[PlannedNode]:
    if plan.failure_domain is None:
        return list(nodes)
    counts: Counter[str] = Counter()
    keyed = []
    for node in nodes:
        value = plan.domain_of(node.labels)
        counts[value] += 1
        keyed.append((counts[value], value, node.name, node))
    return [node for *_, node in sorted(keyed, key=lambda each: each[:3])]
