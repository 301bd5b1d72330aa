"""Terminal output: tables and JSON on standard output, progress and errors on standard error."""

from __future__ import annotations

import json
import re
import sys
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from aks_flex_lab.progress import ProgressReporter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from aks_flex_lab.layout import LabLayout
    from aks_flex_node.errors import FlexError


PIPED_WIDTH = 1000  # no line wrapping when a program reads the output
out = Console(highlight=False, emoji=False, soft_wrap=True, width=None if sys.stdout.isatty() else PIPED_WIDTH)
err = Console(stderr=True, highlight=False, emoji=False, soft_wrap=True)


def print_json(value: Any) -> None:
    """Prints one JSON document on standard output."""
    json.dump(value, sys.stdout, indent=2, default=str)
    sys.stdout.write("\n")


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str | Text]]) -> None:
    """Prints aligned columns without borders."""
    sheet = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        sheet.add_column(column, no_wrap=True)
    for row in rows:
        sheet.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in row))
    out.print(sheet)


def message(text: str) -> None:
    """Prints a line of progress on standard error."""
    err.print(text, markup=False)


@contextmanager
def step(text: str) -> Iterator[None]:
    """Shows the name of a short task while it runs, and its duration when it is done."""
    start = time.monotonic()
    if err.is_terminal:
        with err.status(text):
            yield
    else:
        yield
    err.print(f"  {text:<58}{time.monotonic() - start:7.1f} s", markup=False)


def print_error(error: FlexError, lab: LabLayout | None = None) -> None:
    err.print("[bold red]error:[/] ", end="")
    err.print(error.message, markup=False)
    if error.hint:
        # Hints name the default lab; for another lab, add `--lab`, so that the user can copy the command.
        command = lab.command if lab else "aks-flex-lab"
        hint = re.sub(r"`aks-flex-lab (?!--lab )", f"`{command} ", error.hint)
        err.print(f"       {hint}", markup=False)
    err.print(f"       [dim]{error.name}[/]")


HEARTBEAT_SECONDS = 30.0


class TerminalProgress(ProgressReporter):
    """Updates one line on a terminal; elsewhere prints a line for each result, and sometimes during long tasks."""

    @contextmanager
    def task(self, what: str, doing: Callable[[], str]) -> Iterator[None]:
        start = time.monotonic()
        over = threading.Event()

        def line() -> str:
            return f"{what:<30}{doing():<44}{time.monotonic() - start:7.0f} s"

        def live() -> None:
            with err.status(line()) as status:
                while not over.wait(0.5):
                    status.update(line())

        def heartbeat() -> None:
            while not over.wait(HEARTBEAT_SECONDS):
                message(f"  {line()}")

        thread = threading.Thread(target=live if err.is_terminal else heartbeat, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def finished(self, what: str, how: str, seconds: float) -> None:
        message(f"  {what:<30}{how:<44}{seconds:7.1f} s")

    def step(self, text: str) -> AbstractContextManager[None]:
        return step(text)

    def message(self, text: str) -> None:
        message(text)


JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of a table.")]


def selected_layout(ctx: typer.Context) -> LabLayout:
    """Returns the paths of the lab that `--lab` selects."""
    return cast("LabLayout", ctx.find_root().obj)
