"""Works are processes of their own, as transient units: whatever becomes of this one, they go on to their end."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
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
    kind: str = ""  # what is under way
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def start(self, kind: str, words: Sequence[str] = ()) -> bool:
        """Begin one, unless another is under way."""
        with self._lock:
            if self.kind:
                return False
            self.kind = kind
        threading.Thread(target=self._run, args=(kind, tuple(words)), name=f"work {kind}", daemon=True).start()
        return True

    def await_earlier(self) -> bool:
        """A work that an earlier life of this process began goes on; wait for it as if it were ours."""
        if not self.host.unit(UNIT).running:
            return False
        with self._lock:
            self.kind = "earlier"
        threading.Thread(target=self._await, name="earlier work", daemon=True).start()
        return True

    def _await(self) -> None:
        while self.host.unit(UNIT).running:
            self.sleep(LOOK_SECONDS)
        self._end(works.read(self.host, WORK) or _without_a_word("earlier", []))

    def _run(self, kind: str, words: tuple[str, ...]) -> None:
        before = self.host.read(WORK)
        self.host.ask(*command(self.program, kind, words), seconds=LONGEST)
        outcome = works.read(self.host, WORK) if self.host.read(WORK) != before else None
        lines = [] if outcome else causes.journal(self.host, self.host.unit(UNIT), lines=40)
        self._end(outcome or _without_a_word(kind, lines))

    def _end(self, outcome: Outcome) -> None:
        with self._lock:
            self.kind = ""
        self.done(outcome)


def command(program: str, kind: str, words: Sequence[str]) -> tuple[str, ...]:
    about = f"--description=AKS Flex Node: {kind}"
    return ("systemd-run", f"--unit={UNIT}", about, "--collect", "--wait", "--quiet", program, "work", kind, *words)


def _without_a_word(kind: str, lines: Sequence[str]) -> Outcome:
    return Outcome(
        kind,
        Result.FAILED.value,
        "WorkEnded",
        f"The {kind} ended without a word: {causes.worst_line(lines)}",
        f"Look at `journalctl -u {UNIT} -n 50`. It is tried again.",
        again=True,
    )
