"""Waiting for what Azure has agreed to and does not do at once."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass
class Patience:
    """So many seconds in all, and pauses that grow."""

    seconds: float
    first: float = 1.0
    longest: float = 15.0
    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    _begun: float = field(init=False)
    _pause: float = field(init=False)

    def __post_init__(self) -> None:
        self._begun, self._pause = self.now(), self.first

    @property
    def waited(self) -> float:
        return self.now() - self._begun

    def pause(self) -> bool:
        """Wait a little longer than the last time; False, at once, when there is no time left."""
        left = self.seconds - self.waited
        if left <= 0:
            return False
        self.sleep(min(self._pause, left))
        self._pause = min(self._pause * 2, self.longest)
        return True
