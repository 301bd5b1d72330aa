"""Sends status reports to the provider in a thread of its own: at once after a change, else as a heartbeat."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from aks_flex_node.agent.provider.provider_client import ProviderRequestError

if TYPE_CHECKING:
    from collections.abc import Callable

    from aks_flex_node.agent.provider.provider_client import ProviderClient

HEARTBEAT_SECONDS = 300.0
RETRY_SECONDS = (5.0, 15.0, 60.0, 180.0)  # seconds after a report that did not arrive, and after the next
MAX_RETRY_AFTER = 3600.0  # seconds: no provider asks for more
MIN_INTERVAL = 1.0  # between two reports, however much there is to tell


@dataclass
class StatusReporter:
    provider: ProviderClient
    clock: Callable[[], float] = time.monotonic
    _latest: dict[str, Any] = field(default_factory=dict)
    _failures: int = 0
    _due: float = 0.0
    _soonest: float = 0.0
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _stopped: bool = False

    def start(self) -> None:
        threading.Thread(target=self._run, name="teller", daemon=True).start()

    def stop(self) -> None:
        with self._changed:
            self._stopped = True
            self._changed.notify()

    def update(self, report: dict[str, Any]) -> None:
        """From now on this is how the node is. Only the latest word counts."""
        with self._changed:
            if report != self._latest:
                self._latest = report
                self._due = self._soonest if self._failures == 0 else self._due
                self._changed.notify()

    @property
    def is_due(self) -> bool:
        """Whether there is something to tell now."""
        return bool(self._latest) and self.clock() >= self._due

    def _run(self) -> None:
        while (report := self._next()) is not None:
            self.send(report)

    def _next(self) -> dict[str, Any] | None:
        with self._changed:
            while not self._stopped and not self.is_due:
                self._changed.wait(max(0.0, self._due - self.clock()) if self._latest else None)
            return None if self._stopped else self._latest

    def send(self, report: dict[str, Any]) -> None:
        try:
            self.provider.post_action("reportStatus", report)
        except ProviderRequestError as without:
            self._schedule_next(report, failed=True, asked=without.result.retry_after or 0.0)
        except Exception:  # whatever becomes of one report, there is a next; the polls say what is wrong
            self._schedule_next(report, failed=True)
        else:
            self._schedule_next(report, failed=False)

    def _schedule_next(self, report: dict[str, Any], *, failed: bool, asked: float = 0.0) -> None:
        """When there is to be another."""
        with self._changed:
            now = self.clock()
            self._soonest = now + MIN_INTERVAL
            if failed:
                delay = RETRY_SECONDS[min(self._failures, len(RETRY_SECONDS) - 1)]
                self._failures, self._due = self._failures + 1, now + max(delay, min(asked, MAX_RETRY_AFTER))
            else:
                self._failures, self._due = 0, now + (HEARTBEAT_SECONDS if report == self._latest else MIN_INTERVAL)
