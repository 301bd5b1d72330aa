"""The waves of a roll-out: which nodes are in each. No I/O."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from aks_flex_rp.rollouts.spec import RolloutProperties


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
    counts: dict[str, int] = {}
    keyed = []
    for node in nodes:
        value = plan.domain_of(node.labels)
        counts[value] = counts.get(value, 0) + 1
        keyed.append((counts[value], value, node.name, node))
    return [node for *_, node in sorted(keyed, key=lambda each: each[:3])]
