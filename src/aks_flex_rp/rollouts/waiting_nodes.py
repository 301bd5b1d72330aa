"""Nodes of a wave that cannot begin yet: they are away, outside of their maintenance window, or still download."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

from aks_flex_node.timestamps import format_utc

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aks_flex_rp.rollouts.start_queue import StartQueue
    from aks_flex_rp.rollouts.states import RolloutNode

MAX_SHOWN = 10  # nodes for each kind of wait


class WaitingNodes:
    def __init__(self) -> None:
        self._away: dict[str, None] = {}
        self._until: dict[str, float] = {}  # when a window opens, or the time for downloads is over
        self._timers: list[tuple[float, str]] = []
        self._urgent: dict[str, None] = {}  # nodes that are unavailable already, and need no place in the budget

    def __bool__(self) -> bool:
        return bool(self._away or self._until or self._urgent)

    @property
    def holds_up(self) -> bool:
        """Whether the wave is not complete without these nodes."""
        return bool(self._until or self._urgent)

    def hold(self, node: RolloutNode, now: float, staged_by: float) -> bool:
        """Keeps the node if it cannot begin. `staged_by` is when it begins without its downloads."""
        report = node.report
        if report.is_away and not report.passive:
            self._away[node.name] = None
        elif (until := max(report.opens, staged_by)) > now and not report.passive:
            self._until[node.name] = until
            heapq.heappush(self._timers, (until, node.name))
        elif node.state.is_busy:
            self._urgent[node.name] = None
        else:
            return False
        return True

    def discard(self, name: str) -> None:
        self._away.pop(name, None)
        self._until.pop(name, None)
        self._urgent.pop(name, None)

    def next(self, queue: StartQueue) -> str | None:
        """Returns the node that begins next, or None if there is none, or no place in the budget."""
        return next(iter(self._urgent), None) or queue.next()

    def due(self, now: float) -> list[str]:
        """Returns the nodes whose time has come."""
        found = []
        while self._timers and self._timers[0][0] <= now:
            until, name = heapq.heappop(self._timers)
            if self._until.get(name) == until:
                found.append(name)
        return found

    def wakes_at(self) -> float | None:
        while self._timers and self._until.get(self._timers[0][1]) != self._timers[0][0]:
            heapq.heappop(self._timers)
        return self._timers[0][0] if self._timers else None

    def describe(self, nodes: Mapping[str, RolloutNode], now: float) -> list[str]:
        """Returns in words what the first of them wait for."""
        found = []
        for name in list(self._until)[:MAX_SHOWN]:
            opens = nodes[name].report.opens
            window = f"its maintenance window, which opens at {format_utc(opens)}"
            failed = nodes[name].report.not_staged
            downloads = f"its downloads, which failed: {failed}" if failed else "its downloads"
            found.append(f"{name}: {window if opens > now else downloads}")
        away = {True: "it is offline", False: "its updates are paused"}
        return [*found, *(f"{name}: {away[nodes[name].report.offline]}" for name in list(self._away)[:MAX_SHOWN])]
