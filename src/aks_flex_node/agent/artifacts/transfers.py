"""How far each artifact is, for progress bars."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING

from aks_flex_node.agent.artifacts.sources import without_secrets

if TYPE_CHECKING:
    from collections.abc import Callable

    from aks_flex_node.agent.artifacts.trees import Artifact


class State(str, Enum):
    WAITING = "waiting"
    FETCHING = "fetching"
    UNPACKING = "unpacking"
    READY = "ready"
    FAILED = "failed"


@dataclass(frozen=True)
class Transfer:
    """One artifact at one instant."""

    name: str
    component: str
    url: str
    done: int = 0  # bytes
    total: int | None = None
    state: State = State.WAITING
    cached: bool = False  # it was here already, whole


class Progress:
    """The latest `Transfer` of one artifact. Each change is told to `observe`, in the thread that made it."""

    def __init__(self, artifact: Artifact, observe: Callable[[Transfer], None] | None = None) -> None:
        self._lock = threading.Lock()
        self._now = Transfer(artifact.name, artifact.component, without_secrets(artifact.url))
        self._observe = observe

    @property
    def now(self) -> Transfer:
        with self._lock:
            return self._now

    def is_at(self, done: int, total: int | None) -> None:
        with self._lock:
            self._now = replace(self._now, done=done, total=total)
        self._tell()

    def becomes(self, state: State) -> None:
        with self._lock:
            self._now = replace(self._now, state=state)
        self._tell()

    def was_here(self, size: int) -> None:
        with self._lock:
            self._now = replace(self._now, done=size, total=size, cached=True)
        self._tell()

    def _tell(self) -> None:
        if self._observe:
            self._observe(self.now)
