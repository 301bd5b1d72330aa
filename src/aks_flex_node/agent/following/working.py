"""Works are processes of their own, as transient units: whatever becomes of this one, they go on to their end."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aks_flex_node.agent import works
from aks_flex_node.agent.cluster import causes
from aks_flex_node.agent.components.agent import WORK
from aks_flex_node.agent.works import Outcome, Result

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aks_flex_node.host.host import Host

UNIT = "aks-flex-node-work.service"
LONGEST = 4 * 24 * 3600.0  # a drain may take a day, and everything in a work has a bound of its own
LOOK_SECONDS = 1.0


@dataclass
class Works:
    host: Host
    program: str
    done: Callable[[Outcome], None]  # called in another thread
    sleep: Callable[[float], None] = time.sleep
    now: Callable[[], float] = time.time
    kind: str = ""  # what is under way; nothing only when its outcome was heard

    def start(self, kind: str, words: Sequence[str] = ()) -> bool:
        """Begin one, unless another is under way."""
        if self.kind:
            return False
        self.kind = kind
        threading.Thread(target=self._run, args=(kind, tuple(words)), name=f"work {kind}", daemon=True).start()
        return True

    def await_earlier(self) -> bool:
        """A work that an earlier life of this process began goes on; wait for it as if it were ours."""
        if not self.host.unit(UNIT).running:
            return False
        self.kind = "earlier"
        threading.Thread(target=self._await, name="earlier work", daemon=True).start()
        return True

    def settle(self) -> None:
        """Its outcome was heard: from now on there may be another."""
        self.kind = ""

    def _await(self) -> None:
        try:
            while self.host.unit(UNIT).running:
                self.sleep(LOOK_SECONDS)
            outcome = works.read(self.host, WORK)
        except OSError as error:
            outcome = _without_a_word("earlier", str(error))
        self.done(outcome or _without_a_word("earlier"))

    def _run(self, kind: str, words: tuple[str, ...]) -> None:
        """Whatever happens, there is an outcome: nothing else is begun before."""
        try:
            outcome = self._carry_out(kind, words)
        except OSError as error:  # there may be no memory left for another process
            outcome = _without_a_word(kind, str(error))
        self.done(outcome)

    def _carry_out(self, kind: str, words: tuple[str, ...]) -> Outcome:
        before, begun = self.host.read(WORK), self.now()
        answer = self.host.ask(*command(self.program, kind, words), seconds=LONGEST)
        outcome = works.read(self.host, WORK) if self.host.read(WORK) != before else None
        if outcome:
            return outcome
        lines = causes.journal(self.host, self.host.unit(UNIT), since=begun, lines=40)
        return _without_a_word(kind, causes.worst_line(lines) if lines else answer.err)


def command(program: str, kind: str, words: Sequence[str]) -> tuple[str, ...]:
    about = f"--description=AKS Flex Node: {kind}"
    return ("systemd-run", f"--unit={UNIT}", about, "--collect", "--wait", "--quiet", program, "work", kind, *words)


def _without_a_word(kind: str, said: str = "") -> Outcome:
    return Outcome(
        kind,
        Result.FAILED.value,
        "WorkEnded",
        f"The {kind} ended without a word: {said.strip() or 'it said nothing'}",
        f"Look at `journalctl -u {UNIT} -n 50`. It is tried again.",
        again=True,
    )
