"""A thread that waits for files to change, and says which did."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from aks_flex_node.agent.components.sequence import kept
from aks_flex_node.agent.drifting.sentinels import Sentinel
from aks_flex_node.agent.engine.resources import File, Line, Link

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aks_flex_node.agent.engine.component import Component
    from aks_flex_node.agent.engine.engine import Engine

WAIT_SECONDS = 3600.0


def interesting(engine: Engine, components: Sequence[Component]) -> frozenset[str]:
    """Everything that the configuration puts on this machine: files, links, and all in the programs' directories."""
    specs = [component.desired(engine.config, engine.machine) for component in components]
    plain = {one.path for spec in specs for one in spec.resources if isinstance(one, File | Line | Link)}
    return frozenset(plain | {f"{one.place}/bin/" for spec in specs for one in spec.programs})


class Lookout:
    def __init__(self, engine: Engine, touched: Callable[[frozenset[str]], None]) -> None:
        self._sentinel = Sentinel(interesting(engine, kept(engine.ledger)))
        self._touched = touched
        self._ends = threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._run, name="lookout", daemon=True).start()

    def forget(self) -> None:
        self._sentinel.drain()

    def close(self) -> None:
        self._ends.set()
        self._sentinel.close()

    def _run(self) -> None:
        while not self._ends.is_set():
            paths = self._sentinel.wait(WAIT_SECONDS)
            if paths and not self._ends.is_set():
                self._touched(paths)
