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
PATIENCE = 3600.0  # seconds: no provider asks for more
PAUSE = 1.0  # between two reports, however much there is to tell


@dataclass
class Teller:
    provider: Provider
    clock: Callable[[], float] = time.monotonic
    _latest: dict[str, Any] = field(default_factory=dict)
    _failures: int = 0
    _due: float = 0.0
    _soonest: float = 0.0
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
                self._due = self._soonest if self._failures == 0 else self._due
                self._news.notify()

    @property
    def is_due(self) -> bool:
        """Whether there is something to tell now."""
        return bool(self._latest) and self.clock() >= self._due

    def _run(self) -> None:
        while (report := self._next()) is not None:
            self.send(report)

    def _next(self) -> dict[str, Any] | None:
        with self._news:
            while not self._ends and not self.is_due:
                self._news.wait(max(0.0, self._due - self.clock()) if self._latest else None)
            return None if self._ends else self._latest

    def send(self, report: dict[str, Any]) -> None:
        try:
            self.provider.act("reportStatus", report)
        except Unanswered as without:
            self._note(report, failed=True, asked=without.verdict.after or 0.0)
        except Exception:  # whatever becomes of one report, there is a next; the polls say what is wrong
            self._note(report, failed=True)
        else:
            self._note(report, failed=False)

    def _note(self, report: dict[str, Any], *, failed: bool, asked: float = 0.0) -> None:
        """When there is to be another."""
        with self._news:
            now = self.clock()
            self._soonest = now + PAUSE
            if failed:
                delay = AGAIN[min(self._failures, len(AGAIN) - 1)]
                self._failures, self._due = self._failures + 1, now + max(delay, min(asked, PATIENCE))
            else:
                self._failures, self._due = 0, now + (HEARTBEAT if report == self._latest else PAUSE)
