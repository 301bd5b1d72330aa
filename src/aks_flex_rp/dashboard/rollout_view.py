"""What pages show of roll-outs: state, waves, gates, plan and buttons of one, those of a pool with its barred
revisions, the active ones of all pools, and the place of a node in one.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from aks_flex_node.api.rollout_options import table, written
from aks_flex_rp.dashboard.fleet_page import segments
from aks_flex_rp.rollouts.gate_specs import KINDS
from aks_flex_rp.rollouts.states import NodeState, Phase, state_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aks_flex_rp.dashboard.fleet_page import BarSegment, QueryLinks
    from aks_flex_rp.store.base import Store
    from aks_flex_rp.store.model import Node
    from aks_flex_rp.store.pool_model import BarredRevision, Pool, StateCount, StoredRollout, StoredRolloutNode

PHASE_LABELS = {phase.value: phase.value for phase in Phase} | {Phase.GATES.value: "At a gate"}
NODE_LABELS = {state.value: state.value for state in NodeState} | {NodeState.NOT_REVERSED.value: "Not reversed"}
# In the order of the bars: what is done comes first.
BAR_ORDER = (
    *(NodeState.UPDATED, NodeState.REVERSED, NodeState.UPDATING, NodeState.REVERSING),
    *(NodeState.FAILED, NodeState.NOT_REVERSED, NodeState.PENDING, NodeState.GONE),
)
UNFINISHED = frozenset({NodeState.PENDING.value, NodeState.UPDATING.value, NodeState.REVERSING.value})
REVERSIBLE = frozenset({Phase.RUNNING, Phase.SOAKING, Phase.GATES})
FILTERS = ("wave", "state", "after")
MAX_ROLLOUTS = 20  # on the page of a pool


@dataclass(frozen=True)
class WaveRow:
    """A wave with its nodes by state."""

    label: str
    segments: list[BarSegment]
    link: Callable[..., str]
    offline: int
    is_current: bool


@dataclass(frozen=True)
class RolloutButton:
    """An action that makes sense in the present state."""

    action: str
    label: str
    kind: str  # class of the button
    confirm: bool = False  # whether a page asks before


@dataclass(frozen=True)
class NodePlace:
    """The place of a node in an open roll-out."""

    rollout: StoredRollout
    node: StoredRolloutNode
    waits: str  # empty if it waits for nothing

    @property
    def wave(self) -> int:
        return self.node.wave + 1

    @property
    def label(self) -> str:
        return node_label(self.rollout, self.node.state)


def node_label(rollout: StoredRollout, state: str) -> str:
    """Returns the state of a node in words. After the end of the roll-out, no node is pending any more."""
    return "Not updated" if state == NodeState.PENDING.value and not rollout.open else NODE_LABELS[state]


def is_paused(rollout: StoredRollout) -> bool:
    return state_of(rollout.state).paused and rollout.active


def wave_rows(rollout: StoredRollout, counts: Sequence[StateCount], link: QueryLinks) -> list[WaveRow]:
    waves = sorted({each.wave for each in counts})
    return [_wave(rollout, wave, [each for each in counts if each.wave == wave], len(waves), link) for wave in waves]


def _wave(rollout: StoredRollout, wave: int, counts: Sequence[StateCount], waves: int, link: QueryLinks) -> WaveRow:
    nodes = {each.state: each.nodes for each in counts}
    total = sum(nodes.values())
    parts = ((state.value, node_label(rollout, state.value), nodes.get(state.value, 0)) for state in BAR_ORDER)
    return WaveRow(
        f"Wave {wave + 1} of {waves}: {total:,} node{'' if total == 1 else 's'}",
        segments(parts),
        partial(link, wave=wave + 1, after=""),
        sum(each.offline for each in counts),
        rollout.active and wave == state_of(rollout.state).wave,
    )


def gate_kinds(rollout: StoredRollout) -> dict[str, str]:
    """Returns the kind of each gate by its name."""
    return {gate["name"]: kind for gate in rollout.spec.get("gates", ()) for kind in KINDS if kind in gate}


def buttons(rollout: StoredRollout, *, is_newest: bool) -> list[RolloutButton]:
    """Returns the actions that the present state allows. An earlier roll-out than the newest cannot be reversed."""
    phase = Phase(rollout.phase)
    found: list[RolloutButton] = []
    if not phase.is_final:
        paused = is_paused(rollout)
        found.append(RolloutButton("resume" if paused else "pause", "Resume" if paused else "Pause", "quiet"))
    if phase in REVERSIBLE or (phase in {Phase.HALTED, Phase.SUCCEEDED} and is_newest):
        found.append(RolloutButton("reverse", "Reverse", "quiet", confirm=True))
    if not phase.is_final:
        found.append(RolloutButton("abort", "Abort", "quiet", confirm=True))
    elif not rollout.open:
        found.append(RolloutButton("delete", "Delete", "quiet", confirm=True))
    return found


def plan_rows(rollout: StoredRollout) -> list[tuple[str, str]]:
    """Returns what the roll-out was asked to do."""
    rows = [(row["form"], written(row["kind"], rollout.spec.get(row["path"]))) for row in table()]
    return [(label, text) for label, text in rows if label and text]


def node_place(rollout: StoredRollout, node: StoredRolloutNode) -> NodePlace:
    return NodePlace(rollout, node, _node_waits(rollout, node))


def _node_waits(rollout: StoredRollout, node: StoredRolloutNode) -> str:
    if node.state not in UNFINISHED:
        return ""
    own = [each.partition(": ")[2] for each in rollout.waits if each.startswith(f"{node.node}: ")]
    if own:
        return "" if own[0] == f"it is {node.state.lower()}" else own[0]
    if is_paused(rollout):
        return "a person: the roll-out is paused"
    current = state_of(rollout.state).wave
    if rollout.active and node.state == NodeState.PENDING.value and node.wave > current:
        return f"wave {current + 1} to complete"
    return ""


@dataclass(frozen=True)
class RolloutRow:
    """A roll-out in a list."""

    rollout: StoredRollout

    @property
    def label(self) -> str:
        return f"{PHASE_LABELS[self.rollout.phase]}{', paused' if is_paused(self.rollout) else ''}"

    @property
    def revision(self) -> int:
        return int(self.rollout.spec["revision"])

    @property
    def note(self) -> str:
        """Why it ended, or the first thing that it waits for."""
        waits = f"Waits for {self.rollout.waits[0]}" if self.rollout.waits else ""
        return state_of(self.rollout.state).reason or waits


@dataclass(frozen=True)
class PoolRollouts:
    """The roll-outs of a pool, and what they decided about its revisions."""

    rows: list[RolloutRow]
    more: bool
    active: StoredRollout | None
    stable: int
    barred: tuple[BarredRevision, ...]

    def bars(self, revision: int) -> bool:
        return any(each.revision == revision for each in self.barred)


async def pool_rollouts(store: Store, pool: Pool) -> PoolRollouts:
    found = await store.rollouts(pool.cluster, pool.key, limit=MAX_ROLLOUTS + 1)
    versions = await store.pool_versions(pool)
    return PoolRollouts(
        [RolloutRow(each) for each in found[:MAX_ROLLOUTS]],
        len(found) > MAX_ROLLOUTS,
        next((each for each in found if each.active), None),
        versions.stable or pool.number,
        versions.barred,
    )


async def place_of(store: Store, node: Node) -> NodePlace | None:
    """Returns the place of a node in the newest open roll-out of its pool, if it is in one."""
    if node.pool is None:
        return None
    keys = [
        key for cluster, pool, key in await store.open_rollouts() if (cluster, pool) == (node.cluster, node.pool.name)
    ]
    found = [rollout for key in keys if (rollout := await store.rollout(node.cluster, node.pool.name, key))]
    for rollout in sorted(found, key=lambda each: each.number, reverse=True):
        if member := await store.rollout_node(rollout, node.key):
            return node_place(rollout, member)
    return None
