"""Many questions at once, with one bound on all of them."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

Asked = TypeVar("Asked")
Told = TypeVar("Told")


class Late(Exception):  # noqa: N818 - not yet wrong: it may still come
    """An answer that has not come in time."""


class Call(Generic[Told]):
    """A question on its way. Its thread never keeps the program from ending."""

    def __init__(self, question: Callable[[], Told]) -> None:
        self._question = question
        self._told: list[Told] = []
        self._raised: list[Exception] = []
        self._thread = threading.Thread(target=self._work, name="preflight", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        try:
            self._told.append(self._question())
        except Exception as raised:  # whatever it is, it is told to whoever waits
            self._raised.append(raised)

    def wait(self, end: float) -> Told:
        """The answer; raises what the question raised, and Late when the clock passes the end."""
        self._thread.join(max(0.0, end - time.monotonic()))
        if self._raised:
            raise self._raised[0]
        if not self._told:
            raise Late
        return self._told[0]


def at_once(question: Callable[[Asked], Told], things: Iterable[Asked]) -> list[tuple[Asked, Call[Told]]]:
    """Ask the same of many things; the answers come in the order of the things."""
    return [(thing, Call(lambda thing=thing: question(thing))) for thing in things]  # type: ignore[misc]
