"""Progress, shown to a person."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from aks_flex_node.lab.cli import screen

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

HEARTBEAT_SECONDS = 30.0


class ScreenProgress:
    """On a terminal one line that lives; elsewhere a line for each result, and now and then one for a long wait."""

    @contextmanager
    def working(self, what: str, doing: Callable[[], str]) -> Iterator[None]:
        start = time.monotonic()
        over = threading.Event()

        def line() -> str:
            return f"{what:<30}{doing():<44}{time.monotonic() - start:7.0f} s"

        def live() -> None:
            with screen.err.status(line()) as status:
                while not over.wait(0.5):
                    status.update(line())

        def heartbeat() -> None:
            while not over.wait(HEARTBEAT_SECONDS):
                screen.say(f"  {line()}")

        thread = threading.Thread(target=live if screen.err.is_terminal else heartbeat, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def done(self, what: str, how: str, seconds: float) -> None:
        screen.say(f"  {what:<30}{how:<44}{seconds:7.1f} s")

    def step(self, text: str) -> AbstractContextManager[None]:
        return screen.step(text)

    def say(self, text: str) -> None:
        screen.say(text)
