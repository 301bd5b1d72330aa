"""When to ask next. Pure but for chance, which spreads the questions of many nodes."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from aks_flex_node.agent.following.verdicts import Standing

if TYPE_CHECKING:
    from aks_flex_node.agent.following.verdicts import Verdict

LONGEST = 300.0  # seconds between two questions, however long the provider has been away
HELD = 2.0  # seconds after which an answer may have been held
PART = 4  # and the part of the time we are ready to wait: else it is a provider with too much to do


@dataclass
class Pace:
    interval: float = 30.0
    chance: random.Random = field(default_factory=random.Random)
    _troubles: int = 0

    def next(self, verdict: Verdict, took: float, wait: float) -> float:
        """Seconds until the next question, after one that took so long and might have been held for `wait`."""
        if verdict.good:
            self._troubles = 0
            # A provider that holds questions is asked again at once: that is how it tells us of news.
            held = wait > 0 and took >= max(HELD, wait / PART)
            return self.chance.uniform(0.0, 0.5) if verdict.changed or held else self._jittered()
        if verdict.standing is Standing.DELETED:
            self._troubles = 0
            return self._jittered()
        self._troubles += 1
        delay = min(LONGEST, self._jittered() * float(2 ** min(self._troubles - 1, 10)))
        # Whoever asks for patience gets it, within reason, and a little more, so that not all come back at once.
        asked = min(verdict.after, 3600.0) + self.chance.uniform(0.0, self.interval / 3) if verdict.after else 0.0
        return max(delay, asked)

    def _jittered(self) -> float:
        return self.interval + self.chance.uniform(-1.0, 1.0) * self.interval / 3
