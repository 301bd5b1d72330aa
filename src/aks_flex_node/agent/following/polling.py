"""Asks the provider for news, again and again, in a thread of its own: an answer may be held for most of a minute."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from aks_flex_node.agent.following.pace import Pace
    from aks_flex_node.agent.following.verdicts import Verdict


class Asked(Protocol):
    def poll(self, version: str, wait: int) -> Verdict: ...


@dataclass
class Poller:
    provider: Asked
    pace: Pace
    wait: Callable[[], int]  # how long an answer may be held
    version: Callable[[], str]  # the newest that is known
    take: Callable[[Verdict], Verdict]  # what to do with an answer; how it stands after that
    clock: Callable[[], float] = time.monotonic
    beat: float = field(default_factory=time.monotonic)  # when it last was about to ask
    _met: bool = False
    _ends: threading.Event = field(default_factory=threading.Event)
    _soon: threading.Event = field(default_factory=threading.Event)

    def start(self) -> None:
        threading.Thread(target=self._run, name="poller", daemon=True).start()

    def stop(self) -> None:
        """Ask no more. A question that is under way is not waited for."""
        self._ends.set()
        self._soon.set()

    def hurry(self) -> None:
        """Ask again as soon as may be."""
        self._soon.set()

    def _run(self) -> None:
        while not self._ends.is_set():
            self._soon.wait(self.once())
            self._soon.clear()

    def once(self) -> float:
        """Ask once; seconds until the next time."""
        self.beat = begun = self.clock()
        # The first answer is not held: how it stands is known at once.
        answer = self.provider.poll(self.version(), self.wait() if self._met else 0)
        self._met = True
        took = self.clock() - begun
        return self.pace.next(answer if self._ends.is_set() else self.take(answer), took)
