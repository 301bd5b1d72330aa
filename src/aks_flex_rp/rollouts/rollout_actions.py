"""Carries out what the engine of a roll-out decided: writes nodes, runs gates, bars revisions, tells people."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from aks_flex_rp.arm.errors import ArmError
from aks_flex_rp.callers import Caller, CallerKind
from aks_flex_rp.nodes.context import RequestContext, retry_on_conflict
from aks_flex_rp.nodes.pool_apply import ApplyOptions, PoolApply, PoolStage
from aks_flex_rp.nodes.pool_operations import PoolCommands
from aks_flex_rp.notify.node_events import NodeEvent
from aks_flex_rp.notify.notification_settings import NodeEventKind
from aks_flex_rp.resource.effective import changed_values
from aks_flex_rp.rollouts.gate_run import GateAnswer, GateRun
from aks_flex_rp.rollouts.node_reports import node_report
from aks_flex_rp.rollouts.states import NodeState, Phase
from aks_flex_rp.store.model import AuditAction, RecordRefused, RecordUnverifiable
from aks_flex_rp.store.pool_model import BarredRevision, Heartbeat

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from aks_flex_rp.nodes.commands import NodeCommands
    from aks_flex_rp.nodes.context import ClusterInfo
    from aks_flex_rp.notify.node_events import EventPublisher
    from aks_flex_rp.resource.validation import PoolTemplate
    from aks_flex_rp.rollouts.active_rollout import ActiveRollout, RolloutId
    from aks_flex_rp.rollouts.gate_runner import GateRunner
    from aks_flex_rp.rollouts.states import Apply, RolloutState, RunGate
    from aks_flex_rp.store.model import AuditEvent
    from aks_flex_rp.store.outbox import OutboxMessage
    from aks_flex_rp.store.pool_model import Pool, PoolVersions, StoredRollout, StoredRolloutNode

SERVICE = Caller("aks-flex-rp", "aks-flex-rp", CallerKind.APPLICATION)
MAX_NODES = 2000  # that one transaction writes
MAX_STAGES = 100  # nodes that are asked to download in one step
EVENTS_OF_PHASES = {
    Phase.HALTED: NodeEventKind.ROLLOUT_HALTED,
    Phase.REVERSING: NodeEventKind.ROLLOUT_REVERSING,
    Phase.REVERSED: NodeEventKind.ROLLOUT_REVERSED,
    Phase.SUCCEEDED: NodeEventKind.ROLLOUT_SUCCEEDED,
    Phase.ABORTED: NodeEventKind.ROLLOUT_ABORTED,
}

GateKey = tuple["RolloutId", int, str]  # roll-out, wave and gate

log = logging.getLogger(__name__)


class RolloutActions:
    def __init__(self, commands: NodeCommands, gates: GateRunner) -> None:
        self._commands, self._gates = commands, gates
        self._context, self._store = commands.context, commands.context.store
        self._running: dict[GateKey, asyncio.Task[None]] = {}
        self._ended: set[GateKey] = set()  # gates whose answer nothing waits for
        self._answers: list[tuple[GateKey, GateAnswer]] = []

    def last_seen(self, cluster: str, node: str) -> float:
        """Returns the last heartbeat of a node at this replica, which may not be stored yet."""
        return self._context.last_seen(cluster, node)

    # Decisions

    async def commit(
        self, rollout: ActiveRollout, after: StoredRollout, nodes: Sequence[StoredRolloutNode]
    ) -> StoredRollout:
        """Stores a decision. What it means for the versions of the pool is stored before, and can be repeated."""
        now, before, state = self._context.now(), rollout.saved, rollout.engine.state
        events: list[AuditEvent] = []
        if state.phase is not before.phase or state.failed != before.failed:
            await self._update_versions(rollout, is_bad=bool(state.failed) and state.failed != before.failed)
        cluster = await self._context.clusters.find(after.cluster)
        resource = f"{cluster.id.pool(after.pool) if cluster else after.cluster}/rollouts/{after.key}"
        request = RequestContext(SERVICE, after.key)
        is_new = "phase" not in rollout.stored.state
        changes = list(state_events(before, state, is_new=is_new, wave_count=rollout.engine.wave_count))
        if state.phase is not before.phase or is_new:
            detail = {"state": state.phase.value, "wave": state.wave + 1, "reason": state.reason}
            events.append(request.event(now, AuditAction.ROLLOUT_STATE, resource, **detail))
        messages = rollout_messages(self._context.publisher, after, changes, now)
        # Nodes that begin are stored first if they are too many for one transaction: on their own, they mean that
        # the node is given its revision. All other changes belong to the state that follows from them.
        order = sorted(nodes, key=lambda each: not NodeState(each.state).is_busy)
        version = after.version
        while len(order) > MAX_NODES and NodeState(order[MAX_NODES - 1].state).is_busy:
            early = await self._store.put_rollout(replace(rollout.stored, version=version), order[:MAX_NODES])
            version, order = early.version, order[MAX_NODES:]
        return await self._store.put_rollout(replace(after, version=version), order, events, messages)

    async def _update_versions(self, rollout: ActiveRollout, *, is_bad: bool) -> None:
        """Stores what a decision means for the pool. Raises Conflict if another replica has stepped the roll-out."""
        pool = await self._store.pool(rollout.stored.cluster, rollout.stored.pool)
        if pool is None:
            return
        bar = await self._bar(rollout, pool) if is_bad else None
        stable = rollout.stable_revision

        async def write(found: PoolVersions | None) -> None:
            after = found
            if after and bar and all(each.revision != bar.revision for each in after.barred):
                after = after.with_barred(bar)
            if after and stable:
                after = replace(after, stable=stable)
            if after and after != found:
                events = [await self._barred_event(rollout, bar)] if bar else []
                await self._store.put_pool_versions(after, events, decided=rollout.stored)

        await retry_on_conflict(lambda: self._store.pool_versions(pool), write)

    async def _bar(self, rollout: ActiveRollout, pool: Pool) -> BarredRevision | None:
        """Returns the bar of the revision that failed: the values that it changed."""
        revision, source = rollout.engine.plan.revision, rollout.usual_source
        failed = await self._store.pool_revision(pool, revision)
        earlier = await self._store.pool_revision(pool, source) if source else None
        if failed is None:
            return None
        changes = changed_values(earlier.template if earlier else {}, failed.template)
        values = {path: after for path, (_, after) in changes.items()}
        return BarredRevision(
            revision, values, rollout.stored.key, rollout.engine.state.failed[:1000], self._context.now()
        )

    async def _barred_event(self, rollout: ActiveRollout, bar: BarredRevision) -> AuditEvent:
        cluster = await self._context.clusters.find(rollout.stored.cluster)
        resource = cluster.id.pool(rollout.stored.pool) if cluster else rollout.stored.cluster
        detail = {"revision": bar.revision, "rolloutName": bar.rollout, "reason": bar.reason}
        return RequestContext(SERVICE, bar.rollout).event(
            self._context.now(), AuditAction.REVISION_BARRED, resource, **detail
        )

    # Nodes

    async def apply(self, rollout: ActiveRollout, applies: Sequence[Apply]) -> None:
        """Gives nodes their revisions. The engine is told which ones cannot have it."""
        groups: dict[tuple[int, str], list[str]] = {}
        for each in applies:
            state = rollout.engine.nodes[each.node].state.value
            groups.setdefault((each.revision, state), []).append(each.node)
        for (revision, state), names in groups.items():
            await self._apply_group(rollout, revision, state, names)

    async def _apply_group(self, rollout: ActiveRollout, revision: int, state: str, names: list[str]) -> None:
        reverses = rollout.engine.state.reversing
        options = ApplyOptions(
            allow_downgrade=reverses or rollout.spec.allow_downgrade,
            rollout=rollout.stored,
            state=state,
            reverses=reverses,
        )
        try:
            cluster, pool, template = await self._template(rollout, revision)
            result = await PoolApply(self._commands).apply(
                cluster, pool, template, names, _request(rollout.stored), options
            )
            refused = result.refused
        except ArmError as error:
            refused = [(name, error) for name in names]
        except (RecordRefused, RecordUnverifiable) as error:
            refused = [(name, ArmError(500, "RecordRefused", error.message)) for name in names]
        for name, why in refused:
            await self._refuse(rollout, name.lower(), why)

    async def _refuse(self, rollout: ActiveRollout, name: str, why: ArmError) -> None:
        """Tells the engine that a node cannot have its revision, or that it left the pool a moment ago: that is not
        a failure.
        """
        now = self._context.now()
        try:
            node = await self._store.node(rollout.stored.cluster, name)
            report = node_report(node, rollout.stored.pool, Heartbeat(), now)
        except (RecordRefused, RecordUnverifiable):
            report = rollout.engine.nodes[name].report
        if report.gone:
            rollout.engine.report(name, report, now)
        else:
            rollout.engine.refused(name, f"{why.code}: {why.message}", now)

    async def stage_some(self, rollout: ActiveRollout) -> None:
        """Asks some of the nodes that wait for it to download ahead."""
        for _ in range(min(len(rollout.stages), MAX_STAGES)):
            each = rollout.stages.popleft()
            try:
                revision = rollout.engine.plan.revision
                cluster, _, template = await self._template(rollout, revision)
                request, downgrade = _request(rollout.stored), rollout.spec.allow_downgrade
                stage = PoolStage(self._context, cluster, rollout.stored.pool, request, downgrade)
                if not each.revision:
                    await stage.unstage(each.node, revision)
                    continue
                has_to = await stage.stage(each.node, template)
            except (ArmError, RecordRefused, RecordUnverifiable) as error:
                log.warning("The node %s is not asked to download ahead: %s", each.node, error)
                has_to = False
            if each.revision and not has_to:
                rollout.engine.staged(each.node, self._context.now())
                rollout.is_due = True

    async def _template(self, rollout: ActiveRollout, revision: int) -> tuple[ClusterInfo, Pool, PoolTemplate]:
        stored = rollout.stored
        cluster = await self._context.clusters.find(stored.cluster)
        pool = await self._store.pool(stored.cluster, stored.pool)
        if cluster is None or pool is None:
            raise ArmError(404, "PoolNotFound", f"The pool '{stored.pool}' does not exist any more.")
        return cluster, pool, await PoolCommands(self._context).template(pool, revision)

    # Gates

    def start_gate(self, rollout: ActiveRollout, action: RunGate) -> None:
        """Starts a gate, unless it runs already."""
        key = (rollout.id, action.wave, action.gate)
        if key in self._running:
            return
        spec = next(each for each in rollout.spec.gates if each.name == action.gate)
        run = GateRun(
            rollout.stored.cluster,
            rollout.stored.pool,
            rollout.stored.key,
            action.wave + 1,
            rollout.engine.plan.revision,
            rollout.updated_nodes(action.wave),
            spec,
            action.started,
        )
        self._running[key] = asyncio.create_task(self._run_gate(rollout.id, action, run))

    async def _run_gate(self, rollout: RolloutId, action: RunGate, run: GateRun) -> None:
        key = (rollout, action.wave, action.gate)
        try:
            answer = await self._gates.run(run)
            self._answers.append((key, answer))
        except asyncio.CancelledError:
            if key not in self._ended:
                raise
        except Exception as error:
            log.exception("The gate %s of the roll-out %s failed.", action.gate, run.rollout)
            self._answers.append((key, GateAnswer(False, f"The gate could not be run: {error!r}")))
        self._running.pop(key, None)
        self._ended.discard(key)
        try:
            await self._gates.clean_up(run)
        except Exception:
            log.exception("What the gate %s created could not be removed.", action.gate)

    def take_answers(self) -> list[tuple[GateKey, GateAnswer]]:
        answers, self._answers = self._answers, []
        return answers

    def end_gates(self, rollout: RolloutId) -> None:
        """Ends the gates of a roll-out that was stopped, and removes what they created."""
        for key in [each for each in self._running if each[0] == rollout]:
            self._ended.add(key)
            self._running[key].cancel()

    def cancel_gates(self) -> None:
        """Ends all gates without an answer: another replica runs them."""
        for task in self._running.values():
            task.cancel()
        self._running.clear()
        self._ended.clear()
        self._answers.clear()

    def stop(self) -> None:
        self.cancel_gates()
        self._gates.stop()


def _request(stored: StoredRollout) -> RequestContext:
    """The service acts for the person who created the roll-out, and was allowed to."""
    by = str(stored.system.get("createdBy", ""))
    return RequestContext(replace(SERVICE, name=f"aks-flex-rp for {by}"), stored.key, is_owner=True)


def state_events(before: RolloutState, after: RolloutState, *, is_new: bool, wave_count: int) -> Iterator[NodeEvent]:
    """Returns the events for webhooks of a step, from the state before and after it."""
    if is_new:
        yield NodeEvent(NodeEventKind.ROLLOUT_STARTED, {"waves": wave_count})
    done = after.phase is Phase.SUCCEEDED and before.phase is not Phase.SUCCEEDED
    if not after.reversing and (after.wave > before.wave or done):
        yield NodeEvent(NodeEventKind.ROLLOUT_WAVE_SUCCEEDED, {"wave": before.wave + 1, "waves": wave_count})
    if len(after.gates) > len(before.gates) and not after.gates[-1].answered:
        gate = after.gates[-1]
        yield NodeEvent(NodeEventKind.ROLLOUT_GATE_STARTED, {"wave": gate.wave + 1, "gate": gate.gate})
    if after.phase is not before.phase and after.phase in EVENTS_OF_PHASES:
        yield NodeEvent(EVENTS_OF_PHASES[after.phase], {"reason": after.reason, "failures": after.failures})


def rollout_messages(
    publisher: EventPublisher, rollout: StoredRollout, events: Iterable[NodeEvent], at: float
) -> tuple[OutboxMessage, ...]:
    subject = f"flexNodePools/{rollout.pool}/rollouts/{rollout.key}"
    named = [NodeEvent(each.kind, {"pool": rollout.pool, "rollout": rollout.key, **each.data}) for each in events]
    return publisher.messages_about(rollout.cluster, subject, named, at)
