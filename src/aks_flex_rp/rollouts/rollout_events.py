"""Events of roll-outs for webhooks, derived from the state before and after a step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aks_flex_rp.notify.node_events import NodeEvent
from aks_flex_rp.notify.notification_settings import NodeEventKind
from aks_flex_rp.rollouts.states import Phase

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from aks_flex_rp.notify.node_events import EventPublisher
    from aks_flex_rp.rollouts.states import RolloutState
    from aks_flex_rp.store.outbox import OutboxMessage
    from aks_flex_rp.store.rollout_model import StoredRollout

ENDS = {
    Phase.HALTED: NodeEventKind.ROLLOUT_HALTED,
    Phase.REVERSING: NodeEventKind.ROLLOUT_REVERSING,
    Phase.REVERSED: NodeEventKind.ROLLOUT_REVERSED,
    Phase.SUCCEEDED: NodeEventKind.ROLLOUT_SUCCEEDED,
    Phase.ABORTED: NodeEventKind.ROLLOUT_ABORTED,
}


def state_events(before: RolloutState, after: RolloutState, *, is_new: bool, wave_count: int) -> Iterator[NodeEvent]:
    if is_new:
        yield NodeEvent(NodeEventKind.ROLLOUT_STARTED, {"waves": wave_count})
    done = after.phase is Phase.SUCCEEDED and before.phase is not Phase.SUCCEEDED
    if not after.reversing and (after.wave > before.wave or done):
        yield NodeEvent(NodeEventKind.ROLLOUT_WAVE_SUCCEEDED, {"wave": before.wave + 1, "waves": wave_count})
    if len(after.gates) > len(before.gates) and not after.gates[-1].answered:
        gate = after.gates[-1]
        yield NodeEvent(NodeEventKind.ROLLOUT_GATE_STARTED, {"wave": gate.wave + 1, "gate": gate.gate})
    if after.phase is not before.phase and after.phase in ENDS:
        yield NodeEvent(ENDS[after.phase], {"reason": after.reason, "failures": after.failures})


def rollout_messages(
    publisher: EventPublisher, rollout: StoredRollout, events: Iterable[NodeEvent], at: float
) -> tuple[OutboxMessage, ...]:
    subject = f"flexNodePools/{rollout.pool}/rollouts/{rollout.key}"
    named = [NodeEvent(each.kind, {"pool": rollout.pool, "rollout": rollout.key, **each.data}) for each in events]
    return publisher.messages_about(rollout.cluster, subject, named, at)
