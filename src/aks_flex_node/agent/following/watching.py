"""A thread that waits for files to change, and says which did."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from aks_flex_node.agent.components.sequence import kept
from aks_flex_node.agent.drifting.interests import interests
from aks_flex_node.agent.drifting.sentinels import Sentinel

if TYPE_CHECKING:
    from collections.abc import Callable

    from aks_flex_node.agent.engine.engine import Engine

WAIT_SECONDS = 3600.0
PAUSE_SECONDS = 0.5  # a file that is written a thousand times a second is no reason for a thousand words


class Lookout:
    def __init__(self, engine: Engine, touched: Callable[[frozenset[str]], None]) -> None:
        self._sentinel = Sentinel(interests(engine, kept(engine.ledger, engine.config)))
        self._touched = touched
        self._ends = threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._run, name="lookout", daemon=True).start()

    def close(self) -> None:
        self._sentinel.close()
        self._ends.set()

    def _run(self) -> None:
        while not self._ends.is_set():
            paths = self._sentinel.wait(WAIT_SECONDS)
            if paths and not self._ends.is_set():
                self._touched(paths)
                self._ends.wait(PAUSE_SECONDS)
        self._sentinel.wait(0.0)  # one that was closed gives back what it holds when somebody waits for it
