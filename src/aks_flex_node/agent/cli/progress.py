"""How far a join or a reset is: steps with times and download bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from aks_flex_node.agent.cli import screen
from aks_flex_node.agent.watching import Watcher
from aks_flex_node.agent.words import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from aks_flex_node.agent.artifacts import Transfer
    from aks_flex_node.errors import FlexError

WIDTH = 42


class Lines(Watcher):
    """One line when a step is done."""

    def __init__(self) -> None:
        self._titles: dict[str, str] = {}

    def begins(self, name: str, title: str) -> None:
        self._titles[name] = title

    def ends(self, name: str, changes: int | None, seconds: float) -> None:
        screen.say(_done(self._titles.get(name, name), changes, seconds))

    def fails(self, name: str, error: FlexError) -> None:  # noqa: ARG002
        screen.say(f"  {screen.coloured('✗', screen.RED)} {self._titles.get(name, name)}")

    def note(self, text: str) -> None:
        screen.say(screen.coloured(f"      {text}", screen.DIM))


def _done(title: str, changes: int | None, seconds: float) -> str:
    what = "" if changes is None else counted(changes, "change") if changes else "nothing to do"
    mark = screen.coloured("✓", screen.GREEN)
    return f"  {mark} {title:<{WIDTH}}  {what:<14}{seconds:7.2f} s"


class Live(Lines):
    """The same lines, and below them what is going on right now."""

    def __init__(self, transfers: Callable[[], list[Transfer]]) -> None:
        super().__init__()
        from rich.console import Console
        from rich.live import Live as Screen

        self._transfers = transfers
        self._now = ""
        self._since = time.monotonic()
        console = Console(stderr=True, highlight=False)
        self._live = Screen(get_renderable=self._picture, console=console, refresh_per_second=10, transient=True)

    def __enter__(self) -> Live:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def begins(self, name: str, title: str) -> None:
        super().begins(name, title)
        self._now, self._since = title, time.monotonic()

    def ends(self, name: str, changes: int | None, seconds: float) -> None:
        self._now = ""
        super().ends(name, changes, seconds)

    def _picture(self) -> Any:
        from rich.text import Text

        lines = [f"  … {self._now}  {time.monotonic() - self._since:.1f} s"] if self._now else []
        lines += [
            _bar(transfer) for transfer in self._transfers() if transfer.state.value in {"fetching", "unpacking"}
        ]
        return Text("\n".join(lines), style="dim")


def _bar(transfer: Transfer) -> str:
    """One download, in less than eighty columns."""
    total = transfer.total or 0
    share = min(1.0, transfer.done / total) if total else 0.0
    filled = int(share * 16)
    size = f"{transfer.done / 1e6:5.0f} of {total / 1e6:.0f} MB" if total else f"{transfer.done / 1e6:5.0f} MB"
    what = "unpacking" if transfer.state.value == "unpacking" else size
    return f"      {transfer.name:<34.34} {'━' * filled}{'╌' * (16 - filled)} {what}"


@contextmanager
def watching(transfers: Callable[[], list[Transfer]]) -> Iterator[Watcher]:
    if sys.stderr.isatty():
        with Live(transfers) as live, _lines_above(live):
            yield live
    else:
        yield Lines()


@contextmanager
def _lines_above(live: Live) -> Iterator[None]:
    """While a picture moves at the end of the screen, lines go above it."""
    console, lock, before = live._live.console, threading.Lock(), screen.say

    def say(text: str) -> None:
        from rich.text import Text

        with lock:
            console.print(Text.from_ansi(text))

    screen.say = say
    try:
        yield
    finally:
        screen.say = before
