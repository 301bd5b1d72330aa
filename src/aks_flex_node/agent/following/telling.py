"""Reports to the provider, in a thread of its own: on a change at once, else as a sign of life."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from aks_flex_node.agent.following.provider import Unanswered

if TYPE_CHECKING:
    from collections.abc import Callable

    from aks_flex_node.agent.following.provider import Provider

HEARTBEAT = 300.0
AGAIN = (5.0, 15.0, 60.0, 180.0)  # seconds after a report that did not arrive, and after the next


@dataclass
class Teller:
    provider: Provider
    clock: Callable[[], float] = time.monotonic
    _latest: dict[str, Any] = field(default_factory=dict)
    _told: dict[str, Any] | None = None
    _failures: int = 0
    _due: float = 0.0
    _news: threading.Condition = field(default_factory=threading.Condition)
    _ends: bool = False

    def start(self) -> None:
        threading.Thread(target=self._run, name="teller", daemon=True).start()

    def stop(self) -> None:
        with self._news:
            self._ends = True
            self._news.notify()

    def tell(self, report: dict[str, Any]) -> None:
        """From now on this is how the node is. Only the latest word counts."""
        with self._news:
            if report != self._latest:
                self._latest = report
                self._due = self.clock() if self._failures == 0 else self._due
                self._news.notify()

    def _run(self) -> None:
        while (report := self._next()) is not None:
            self.send(report)

    def _next(self) -> dict[str, Any] | None:
        with self._news:
            while not self._ends and (not self._latest or self.clock() < self._due):
                self._news.wait(max(0.0, self._due - self.clock()) if self._latest else None)
            return None if self._ends else self._latest

    def send(self, report: dict[str, Any]) -> None:
        try:
            self.provider.act("reportStatus", report)
        except Unanswered:
            delay = AGAIN[min(self._failures, len(AGAIN) - 1)]
            self._failures += 1
        else:
            self._failures, self._told = 0, report
            delay = HEARTBEAT
        with self._news:
            fresh = self._told is not None and self._latest != self._told and self._failures == 0
            self._due = self.clock() + (0.0 if fresh else delay)
