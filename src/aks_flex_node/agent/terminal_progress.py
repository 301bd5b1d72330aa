"""Progress of a join or an unbootstrap: steps with times, download bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from aks_flex_node.agent import terminal
from aks_flex_node.agent.progress import ProgressReporter
from aks_flex_node.agent.text import pluralize

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from aks_flex_node.agent.artifacts import Transfer
    from aks_flex_node.errors import FlexError

WIDTH = 42


class TerminalProgress(ProgressReporter):
    """One line when a step is done."""

    def __init__(self) -> None:
        self._titles: dict[str, str] = {}

    def step_started(self, name: str, title: str) -> None:
        self._titles[name] = title

    def step_finished(self, name: str, changes: int | None, seconds: float) -> None:
        terminal.print_message(_step_line(self._titles.get(name, name), changes, seconds))

    def step_failed(self, name: str, error: FlexError) -> None:  # noqa: ARG002
        terminal.print_message(f"  {terminal.colored('✗', terminal.RED)} {self._titles.get(name, name)}")

    def note(self, text: str) -> None:
        terminal.print_message(terminal.colored(f"      {text}", terminal.DIM))


def _step_line(title: str, changes: int | None, seconds: float) -> str:
    what = "" if changes is None else pluralize(changes, "change") if changes else "nothing to do"
    mark = terminal.colored("✓", terminal.GREEN)
    return f"  {mark} {title:<{WIDTH}}  {what:<14}{seconds:7.2f} s"


class LiveTerminalProgress(TerminalProgress):
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

    def __enter__(self) -> LiveTerminalProgress:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def step_started(self, name: str, title: str) -> None:
        super().step_started(name, title)
        self._now, self._since = title, time.monotonic()

    def step_finished(self, name: str, changes: int | None, seconds: float) -> None:
        self._now = ""
        super().step_finished(name, changes, seconds)

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
def show_progress(transfers: Callable[[], list[Transfer]]) -> Iterator[ProgressReporter]:
    if sys.stderr.isatty():
        with LiveTerminalProgress(transfers) as live, _messages_above(live):
            yield live
    else:
        yield TerminalProgress()


@contextmanager
def _messages_above(live: LiveTerminalProgress) -> Iterator[None]:
    """While a picture moves at the end of the screen, lines go above it."""
    console, lock, before = live._live.console, threading.Lock(), terminal.print_message

    def say(text: str) -> None:
        from rich.text import Text

        with lock:
            console.print(Text.from_ansi(text))

    terminal.print_message = say
    try:
        yield
    finally:
        terminal.print_message = before
