"""Shows the progress of a join, an unbootstrap or a job on the terminal: steps with durations, and downloads."""

from __future__ import annotations

import sys
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from aks_flex_node.agent.cli import terminal
from aks_flex_node.agent.progress import ProgressReporter
from aks_flex_node.agent.text import pluralize

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from aks_flex_node.agent.artifacts.download import Transfer
    from aks_flex_node.errors import FlexError

WIDTH = 42


class TerminalProgress(ProgressReporter):
    """Prints one line per finished step; prints above the download display while it is active."""

    def __init__(self) -> None:
        self._titles: dict[str, str] = {}
        self._display: TransferDisplay | None = None

    def step_started(self, name: str, title: str) -> None:
        self._titles[name] = title
        if self._display:
            self._display.show_step(title)

    def step_finished(self, name: str, changes: int | None, seconds: float) -> None:
        if self._display:
            self._display.show_step("")
        what = "" if changes is None else pluralize(changes, "change") if changes else "nothing to do"
        mark = terminal.colored("✓", terminal.GREEN)
        self.message(f"  {mark} {self._titles.get(name, name):<{WIDTH}}  {what:<14}{seconds:7.2f} s")

    def step_failed(self, name: str, error: FlexError) -> None:  # noqa: ARG002
        self.message(f"  {terminal.colored('✗', terminal.RED)} {self._titles.get(name, name)}")

    def note(self, text: str) -> None:
        self.message(terminal.colored(f"      {text}", terminal.DIM))

    def message(self, text: str) -> None:
        (self._display.print_above if self._display else terminal.print_message)(text)

    def warning(self, text: str) -> None:
        self.message(terminal.warning_text(text))

    @contextmanager
    def show_transfers(self, transfers: Callable[[], list[Transfer]]) -> Iterator[None]:
        if not sys.stderr.isatty():
            yield
            return
        try:
            with TransferDisplay(transfers) as self._display:
                yield
        finally:
            self._display = None


class TransferDisplay:
    """Displays the current step and active downloads below all other output."""

    def __init__(self, transfers: Callable[[], list[Transfer]]) -> None:
        from rich.console import Console
        from rich.live import Live

        self._transfers = transfers
        self._step, self._since = "", time.monotonic()
        self._lock = threading.Lock()
        self._console = Console(stderr=True, highlight=False)
        self._live = Live(get_renderable=self._render, console=self._console, refresh_per_second=10, transient=True)

    def __enter__(self) -> TransferDisplay:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def show_step(self, title: str) -> None:
        self._step, self._since = title, time.monotonic()

    def print_above(self, text: str) -> None:
        from rich.text import Text

        with self._lock:
            self._console.print(Text.from_ansi(text))

    def _render(self) -> Any:
        from rich.text import Text

        lines = [f"  … {self._step}  {time.monotonic() - self._since:.1f} s"] if self._step else []
        lines += [
            _bar(transfer) for transfer in self._transfers() if transfer.state.value in {"fetching", "unpacking"}
        ]
        return Text("\n".join(lines), style="dim")


def _bar(transfer: Transfer) -> str:
    """Formats one download in fewer than eighty columns."""
    total = transfer.total or 0
    share = min(1.0, transfer.done / total) if total else 0.0
    filled = int(share * 16)
    size = f"{transfer.done / 1e6:5.0f} of {total / 1e6:.0f} MB" if total else f"{transfer.done / 1e6:5.0f} MB"
    what = "unpacking" if transfer.state.value == "unpacking" else size
    return f"      {transfer.name:<34.34} {'━' * filled}{'╌' * (16 - filled)} {what}"
