"""Fixtures: a machine in a directory, and a simulated Azure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from aks_flex_node.agent.arc.registration import ArcRegistration
from aks_flex_node.host.actions import Run
from aks_flex_node.retry import RetryDeadline
from tests.arc_machines import ArcSystem, Azure, config, seed
from tests.crash import harness
from tests.crash.crash_points import SimulatedHost

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from aks_flex_node.host.actions import Action
    from aks_flex_node.settings.models import NodeConfig


class Place:
    def __init__(self, root: Path) -> None:
        self.root = seed(root)
        (root / "var/lib").mkdir(parents=True, exist_ok=True)
        self.azure = Azure(root)
        self.system = ArcSystem(root, self.azure)
        self.host = Watched(root, self)
        self.notes: list[str] = []
        self.before_run: Callable[[], object] = lambda: None

    def text(self, path: str) -> str:
        return (self.root / path.lstrip("/")).read_text()

    def registration(self, config: NodeConfig) -> ArcRegistration:
        clock = self.azure.clock
        engine = harness.engine(self.host, config)
        return ArcRegistration(
            engine,
            self.notes.append,
            self.azure,
            lambda seconds: RetryDeadline(seconds, now=clock.now, sleep=clock.sleep),
        )

    def register_with(self, *, verify_again: bool = False, **changes: Any) -> None:
        self.registration(config(**changes)).run(verify_again=verify_again)

    def unregister(self) -> list[str]:
        return self.registration(config()).unregister()


class Watched(SimulatedHost):
    def __init__(self, root: Path, place: Place) -> None:
        super().__init__(root)
        self.system = place.system
        self._place = place

    def apply(self, action: Action) -> None:
        if isinstance(action, Run):
            self._place.before_run()
        super().apply(action)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)
