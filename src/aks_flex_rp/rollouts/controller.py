"""Steps the roll-outs of all pools, in the one replica that holds the lease.

A step takes in what changed, lets the engine decide, stores the decision with the version of the roll-out, and then
carries it out. A replica that lost its lease in between gets a Conflict and forgets what it knew. Every action can
be repeated: after a restart, nodes that were to be given a revision and were not are given it.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from aks_flex_rp.rollouts.active_rollout import ActiveRollout
from aks_flex_rp.rollouts.node_reports import node_report
from aks_flex_rp.rollouts.states import Apply, Phase, RunGate, Stage
from aks_flex_rp.rollouts.waits import wakes_at
from aks_flex_rp.store.model import Conflict, RecordRefused, RecordUnverifiable, StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aks_flex_rp.nodes.context import NodeContext
    from aks_flex_rp.rollouts.active_rollout import RolloutId
    from aks_flex_rp.rollouts.rollout_actions import RolloutActions
    from aks_flex_rp.rollouts.states import Action
    from aks_flex_rp.store.pool_model import RolloutSignal

LEASE = "rollouts"
LEASE_SECONDS = 15.0
STEP_SECONDS = 0.25  # with open roll-outs
IDLE_SECONDS = 1.0  # without: until one is created
REFRESH_SECONDS = 5.0  # between reads of heartbeats while a wave waits for them
CLOCK_TOLERANCE = 5.0  # seconds by which the clock may deviate between two steps
MAX_SIGNALS = 1000
UNREADABLE_SECONDS = 60.0  # until a roll-out that could not be read is tried again
MAX_ROUNDS = 20  # steps of one roll-out in a row

log = logging.getLogger(__name__)


class RolloutController:
    def __init__(
        self,
        context: NodeContext,
        actions: RolloutActions,
        observe: Callable[[float], None] = lambda _: None,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        holder: str = "",
    ) -> None:
        """`observe` is told the seconds of each step. `holder` is the name of the only replica, if there are no
        others: it has its lease again at once after a restart.
        """
        self._context, self._actions, self._observe = context, actions, observe
        self._store = context.store
        self._clock, self._monotonic = clock, monotonic
        self._holder = holder or uuid.uuid4().hex
        self._known: dict[RolloutId, ActiveRollout] = {}
        self._lease_until = 0.0  # by the monotonic clock
        self._returned = 0.0  # when this replica got the lease
        self._refused: dict[tuple[str, str, str], int] = {}  # versions of roll-outs that were not authentic
        self._retry_at: dict[tuple[str, str, str], float] = {}  # roll-outs that could not be read
        self._last: tuple[float, float] | None = None  # both clocks at the last step
        self._refreshed = 0.0
        self._unsaved: set[RolloutId] = set()  # roll-outs whose last decision was not stored

    @property
    def rollouts(self) -> list[ActiveRollout]:
        return list(self._known.values())

    async def once(self) -> None:
        """Takes one step of all roll-outs that have something to do."""
        began = self._monotonic()
        try:
            if not await self._has_lease():
                return
            self._check_clock()
            await self._load()
            signals = await self._take_signals()
            await self._refresh_heartbeats()
            self._take_answers()
            for rollout in self.rollouts:
                await self._try_step(rollout)
            # A decision that was not stored is made again, with what was signalled.
            saved = [each for each in signals if (each.cluster, each.pool, each.rollout) not in self._unsaved]
            await self._store.signals_handled(saved)
            self._unsaved.clear()
        except StoreUnavailable:
            self._forget()  # a write may have been executed or not: everything is read again
            raise
        finally:
            self._observe(self._monotonic() - began)

    async def stop(self) -> None:
        self._actions.stop()
        if self._lease_until:
            with suppress(StoreUnavailable):
                await self._store.end_lease(LEASE, self._holder)
        self._forget()

    def _forget(self) -> None:
        self._known.clear()
        self._lease_until = 0.0
        self._actions.cancel_gates()

    async def _has_lease(self) -> bool:
        now = self._monotonic()
        if now < self._lease_until - LEASE_SECONDS * 2 / 3:
            return True
        if await self._store.take_lease(LEASE, self._holder, self._clock(), LEASE_SECONDS):
            if now >= self._lease_until:
                self._forget()
                self._returned = self._clock()
            self._lease_until = now + LEASE_SECONDS
            return True
        self._forget()
        return False

    def _check_clock(self) -> None:
        """Moves the times of all roll-outs if the clock was set: a wait must be neither skipped nor extended."""
        wall, steady = self._clock(), self._monotonic()
        if self._last:
            jump = (wall - self._last[0]) - (steady - self._last[1])
            if abs(jump) > CLOCK_TOLERANCE:
                log.warning("The clock was set by %.0f s. The times of roll-outs are moved with it.", jump)
                for rollout in self.rollouts:
                    rollout.engine.shift(jump, wall)
                    rollout.is_due = True
        self._last = (wall, steady)

    async def _load(self) -> None:
        """Loads roll-outs that are new, or that another writer changed."""
        versions = await self._store.open_rollouts()
        for rollout in self.rollouts:
            is_ending = rollout.stages and not rollout.stored.open
            if versions.get(rollout.key) != rollout.stored.version and not is_ending:
                del self._known[rollout.id]
        known = {rollout.key for rollout in self.rollouts}
        for key in versions:
            is_due = self._monotonic() >= self._retry_at.get(key, 0.0)
            if key not in known and self._refused.get(key) != versions[key] and is_due:
                await self._load_one(key, versions[key])

    async def _load_one(self, key: tuple[str, str, str], version: int) -> None:
        try:
            stored = await self._store.rollout(*key)
            if stored is None or not stored.open:
                return
            now = self._clock()
            rollout = await ActiveRollout.load(self._store, stored, now)
            rollout.engine.returned = self._returned
            rollout.carry_out_orders(now)
            # Nodes that were to be given a revision when the process ended.
            await self._carry_out(rollout, rollout.engine.pending_applies(now))
        except (RecordRefused, RecordUnverifiable) as error:
            log.error("The roll-out %s of the pool %s is not stepped: %s", key[2], key[1], error.message)
            self._refused[key] = version
            return
        except StoreUnavailable:
            raise
        except Exception:
            log.exception("The roll-out %s of the pool %s cannot be read. It is tried again.", key[2], key[1])
            self._retry_at[key] = self._monotonic() + UNREADABLE_SECONDS
            return
        self._retry_at.pop(key, None)
        self._known[rollout.id] = rollout

    async def _take_signals(self) -> Sequence[RolloutSignal]:
        signals = await self._store.rollout_signals(MAX_SIGNALS)
        nodes = {(each.cluster, each.pool, each.rollout, each.node): each for each in signals}
        overridden = {(each.pool, each.rollout, each.node): each.override for each in signals if each.override}
        for cluster, pool, number, key in nodes:
            rollout = self._known.get((cluster, pool, number))
            if rollout is None:
                continue
            await self._read_node(rollout, key, overridden.get((pool, number, key), ""))
        return signals

    async def _read_node(self, rollout: ActiveRollout, key: str, overridden_by: str = "") -> None:
        """Tells the engine what is known of a node."""
        cluster, pool, now = rollout.stored.cluster, rollout.stored.pool, self._clock()
        try:
            node = await self._store.node(cluster, key)
        except (RecordRefused, RecordUnverifiable):
            return  # an alarm was raised; the node does not get anything
        report = node_report(node, pool, await self._store.heartbeat(cluster, key), now)
        if overridden_by:
            report = replace(report, gone=report.gone or f"It was taken out by {overridden_by}.")
        elif rollout.engine.is_undone(key, report):  # all that was decided has been carried out before
            report = replace(report, gone=f"It was made again, or given revision {report.desired} by a person.")
        rollout.engine.report(key, report, now)
        rollout.is_due = True

    async def _refresh_heartbeats(self) -> None:
        """Reads the heartbeats of nodes whose wave waits for them: they leave no signals."""
        now = self._clock()
        waiting = [each for each in self.rollouts if _waits_for_heartbeats(each, now)]
        if not waiting or self._monotonic() < self._refreshed + REFRESH_SECONDS:
            return
        self._refreshed = self._monotonic()
        for rollout in waiting:
            beats = await self._store.heartbeats(rollout.stored.cluster, rollout.stored.pool)
            for name in rollout.engine.unhealthy():
                if beat := beats.get(name):
                    seen = max(beat.last_seen, self._actions.last_seen(rollout.stored.cluster, name))
                    report = rollout.engine.nodes[name].report
                    rollout.engine.report(name, replace(report, seen=seen, offline=beat.silent), now)
            rollout.is_due = True

    def _take_answers(self) -> None:
        for (key, wave, gate), answer in self._actions.take_answers():
            if rollout := self._known.get(key):
                rollout.engine.gate_answered(wave, gate, self._clock(), passed=answer.passed, message=answer.message)
                rollout.is_due = True

    async def _try_step(self, rollout: ActiveRollout) -> None:
        """Takes a step. A roll-out that cannot be stepped is read again, and does not stop the others."""
        try:
            await self._step(rollout)
        except StoreUnavailable:
            raise
        except Exception:
            log.exception("A step of the roll-out %s of the pool %s failed.", rollout.key[2], rollout.key[1])
            self._known.pop(rollout.id, None)
            self._unsaved.add(rollout.id)

    async def _step(self, rollout: ActiveRollout) -> None:
        now = self._clock()
        wakes = wakes_at(rollout.engine)
        if not rollout.is_due and not rollout.stages and (wakes is None or now < wakes):
            return
        for _ in range(MAX_ROUNDS):
            rollout.is_due = False
            actions = rollout.engine.step(self._clock())
            before = rollout.saved
            if not await self._commit(rollout, actions):
                return
            has_moved = (rollout.saved.wave, rollout.saved.phase) != (before.wave, before.phase)
            if has_moved and rollout.engine.phase in {Phase.RUNNING, Phase.SUCCEEDED}:
                # A late node must not be left behind, nor get the revision before it has proved itself.
                await rollout.add_new_nodes(self._store, self._clock())
            await self._carry_out(rollout, actions)
            if not rollout.is_due:
                break
        await self._actions.stage_some(rollout)
        if not rollout.stored.open and not rollout.stages:
            self._known.pop(rollout.id, None)

    async def _commit(self, rollout: ActiveRollout, actions: Sequence[Action]) -> bool:
        """Stores what was decided. Returns False if another writer was faster: it is read again then."""
        # A roll-out ends for good after its nodes were given what was decided with its end.
        is_settled = rollout.engine.is_settled and not any(isinstance(each, Apply) for each in actions)
        after = rollout.next_stored(self._clock(), is_settled=is_settled)
        nodes = rollout.changed_nodes()
        if after is None and not nodes:
            return True
        try:
            rollout.stored = await self._actions.commit(rollout, after or rollout.stored, nodes)
        except Conflict:
            self._known.pop(rollout.id, None)
            self._unsaved.add(rollout.id)
            return False
        rollout.saved = rollout.engine.state
        return True

    async def _carry_out(self, rollout: ActiveRollout, actions: Sequence[Action]) -> None:
        applies = [each for each in actions if isinstance(each, Apply)]
        if applies:
            await self._actions.apply(rollout, applies)
            rollout.is_due = True  # some may have been refused, and more may begin
        rollout.stages.extend(each for each in actions if isinstance(each, Stage))
        for each in actions:
            if isinstance(each, RunGate):
                self._actions.start_gate(rollout, each)
        if rollout.engine.current_gate is None:
            self._actions.end_gates(rollout.id)


def _waits_for_heartbeats(rollout: ActiveRollout, now: float) -> bool:
    engine = rollout.engine
    return engine.phase is Phase.SOAKING and now >= engine.state.since + engine.plan.soak_seconds


async def run_controller(controller: RolloutController) -> None:
    """Steps roll-outs until it is cancelled. A failure is logged and the next step tries again."""
    pause = IDLE_SECONDS
    while True:
        try:
            await controller.once()
            pause = STEP_SECONDS if controller.rollouts else IDLE_SECONDS
        except StoreUnavailable as error:
            log.warning("Roll-outs wait for the database: %s", error.message)
            pause = min(pause * 2, 5.0)
        except Exception:
            log.exception("A step of the roll-outs failed.")
            pause = min(pause * 2, 5.0)
        await asyncio.sleep(pause)
