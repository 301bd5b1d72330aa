"""What a roll-out is to do: its waves, budgets, gates and limits. No I/O."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from aks_flex_rp.text_enum import StoredEnum

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


class OnFailure(StoredEnum):
    HALT = "halt"
    REVERSE = "reverse"


@dataclass(frozen=True)
class Share:
    """A number of nodes, or a percentage of them."""

    count: int = 0
    percent: int = 0

    def of(self, total: int) -> int:
        """Returns the number of nodes, at least 1: a share that rounds to none would never begin."""
        found = self.count or -(-total * self.percent // 100)
        return max(1, min(found, total)) if total else 0

    @classmethod
    def parse(cls, text: str) -> Share:
        """Parses `3` or `10%`, as the API validates it."""
        return cls(percent=int(text[:-1])) if text.endswith("%") else cls(int(text))

    def __str__(self) -> str:
        return f"{self.percent}%" if self.percent else str(self.count)


@dataclass(frozen=True)
class FailureDomain:
    """Limits how many nodes with the same value of a label may be unavailable at once."""

    label: str
    max_unavailable: Share = field(default_factory=lambda: Share(1))


@dataclass(frozen=True)
class PlannedGate:
    name: str
    seconds: float  # after which it has failed
    needs_approval: bool = False


@dataclass(frozen=True)
class RolloutPlan:
    revision: int
    waves: tuple[Share, ...] = (Share(1), Share(percent=10), Share(percent=50), Share(percent=100))
    canary: Mapping[str, str] = field(default_factory=dict)  # labels of the nodes of the first wave
    max_unavailable: Share = field(default_factory=lambda: Share(percent=10))
    domain: FailureDomain | None = None
    soak_seconds: float = 600.0
    max_failures: int = 0
    on_failure: OnFailure = OnFailure.REVERSE
    gates: tuple[PlannedGate, ...] = ()
    node_seconds: float = 3600.0  # limit for the update of a node
    stage_seconds: float = 600.0  # limit for the downloads ahead of a wave; 0: none

    def domain_of(self, labels: Mapping[str, str]) -> str:
        return labels.get(self.domain.label, "") if self.domain else ""


@dataclass(frozen=True)
class PlannedNode:
    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    late: bool = False  # belongs into the last wave: it is offline, or has no machine that could be updated


def plan_waves(plan: RolloutPlan, nodes: Iterable[PlannedNode]) -> list[list[str]]:
    """Returns the names of the nodes of each wave. The shares are cumulative, and the last wave has all that remain.

    Nodes with the labels of the canary come first. Nodes that show nothing about the revision come last. In between,
    nodes of different domains alternate, so that the budget of a domain seldom holds up the others.
    """
    known = sorted(nodes, key=lambda node: node.name)
    late = [node for node in known if node.late]
    able = [node for node in known if not node.late]
    canaries = [node for node in able if plan.canary and plan.canary.items() <= node.labels.items()]
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


def _alternating(plan: RolloutPlan, nodes: Sequence[PlannedNode]) -> list[PlannedNode]:
    if plan.domain is None:
        return list(nodes)
    counts: dict[str, int] = {}
    keyed = []
    for node in nodes:
        value = plan.domain_of(node.labels)
        counts[value] = counts.get(value, 0) + 1
        keyed.append((counts[value], value, node.name, node))
    return [node for *_, node in sorted(keyed, key=lambda each: each[:3])]
