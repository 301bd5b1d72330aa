"""What the lab says to a person, and what it says to a program.

Facts go to standard output: a table for a person, JSON with `--json`. Progress and errors go to standard error, so
that output can be piped. Colour only on a terminal.
"""

from __future__ import annotations

import json
import re
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from aks_flex_node.lab.errors import LabError
    from aks_flex_node.lab.layout import Layout

WIDE = 1000  # for a program that reads, no line is too long
out = Console(highlight=False, emoji=False, soft_wrap=True, width=None if sys.stdout.isatty() else WIDE)
err = Console(stderr=True, highlight=False, emoji=False, soft_wrap=True)


def facts(value: Any) -> None:
    """One JSON document on standard output."""
    json.dump(value, sys.stdout, indent=2, default=str)
    sys.stdout.write("\n")


def table(columns: Sequence[str], rows: Iterable[Sequence[str | Text]]) -> None:
    """Aligned columns without lines around them."""
    sheet = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        sheet.add_column(column, no_wrap=True)
    for row in rows:
        sheet.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in row))
    out.print(sheet)


def say(text: str) -> None:
    """A line of progress."""
    err.print(text, markup=False)


@contextmanager
def step(text: str) -> Iterator[None]:
    """A piece of work that takes a moment: its name while it runs, its time when it is done."""
    start = time.monotonic()
    if err.is_terminal:
        with err.status(text):
            yield
    else:
        yield
    err.print(f"  {text:<58}{time.monotonic() - start:7.1f} s", markup=False)


def complain(error: LabError, lab: Layout | None = None) -> None:
    err.print("[bold red]error:[/] ", end="")
    err.print(error.message, markup=False)
    if error.hint:
        # Hints are written for the default lab; a person who named another must be able to copy them.
        command = lab.command if lab else "aks-flex-lab"
        hint = re.sub(r"`aks-flex-lab (?!--lab )", f"`{command} ", error.hint)
        err.print(f"       {hint}", markup=False)
    err.print(f"       [dim]{error.name}, see {error.more}[/]")


def megabytes(count: float) -> str:
    return f"{count / 1048576:.0f} MB"
