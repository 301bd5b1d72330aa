"""Asks the provider for news, again and again, in a thread of its own: an answer may be held for most of a minute."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from aks_flex_node.agent.following.verdicts import Standing, Verdict
from aks_flex_node.errors import FlexError

if TYPE_CHECKING:
    from collections.abc import Callable

    from aks_flex_node.agent.following.pace import Pace

LONGEST = 1800.0  # seconds: everything that one question may lead to has a bound, and they add up to less


class Asked(Protocol):
    def poll(self, version: str, wait: int) -> Verdict: ...


@dataclass
class Poller:
    provider: Asked
    pace: Pace
    wait: Callable[[], int]  # how long an answer may be held
    version: Callable[[], str]  # the newest that is known
    take: Callable[[Verdict], Verdict]  # what to do with an answer; how it stands after that
    failed: Callable[[Verdict], None]  # told when that could not be done
    clock: Callable[[], float] = time.monotonic
    _back: float = float("inf")  # when it is to be heard of again
    _met: bool = False
    _ends: threading.Event = field(default_factory=threading.Event)

    def start(self) -> None:
        threading.Thread(target=self._run, name="poller", daemon=True).start()

    def stop(self) -> None:
        """Ask no more. A question that is under way is not waited for."""
        self._ends.set()

    @property
    def is_late(self) -> bool:
        """Whether it hangs where nothing should: a server may send its answer one byte a minute."""
        return self.clock() > self._back

    def _run(self) -> None:
        while not self._ends.is_set():
            self._ends.wait(self.once())

    def once(self) -> float:
        """Ask once; seconds until the next time."""
        begun = self.clock()
        self._back = begun + LONGEST
        # The first answer is not held, nor is the first after a trouble: how it stands is known at once.
        first = not self._met
        wait, took = 0 if first else self.wait(), 0.0
        try:
            answer = self.provider.poll(self.version(), wait)
            took = self.clock() - begun
            verdict = answer if self._ends.is_set() else self.take(answer)
        except FlexError as error:
            verdict = self._failing(error.message)
        except Exception as error:  # whatever an answer does to us, the next question is asked
            # What it says may hold anything, so only its kind is told.
            verdict = self._failing(f"An answer could not be dealt with ({type(error).__name__}).")
        self._met = verdict.good
        delay = self.pace.next(verdict, took, wait)
        if first and verdict.good and self.wait():
            delay = 0.0  # and from now on answers may be held
        self._back = self.clock() + delay + LONGEST
        return delay

    def _failing(self, message: str) -> Verdict:
        verdict = Verdict(Standing.AGENT_FAILING, message)
        self.failed(verdict)
        return verdict
