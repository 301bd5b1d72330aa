"""What the agent says to a person, and what it says to a program.

Facts go to standard output: a table for a person, JSON with `--json`. Progress and errors go to standard error.
"""

from __future__ import annotations

import contextlib
import json
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aks_flex_node.errors import FlexError

RED, BOLD, DIM, GREEN, YELLOW, PLAIN = "\033[31m", "\033[1m", "\033[2m", "\033[32m", "\033[33m", "\033[0m"


def coloured(text: str, colour: str, *, on: Any = None) -> str:
    """Colour on a terminal, plain text elsewhere."""
    return f"{colour}{text}{PLAIN}" if (on or sys.stderr).isatty() else text


def facts(value: Any) -> None:
    """One JSON document on standard output."""
    json.dump(value, sys.stdout, indent=2, default=str)
    sys.stdout.write("\n")


def show(text: str = "") -> None:
    with contextlib.suppress(BrokenPipeError):
        print(text, flush=True)


def say(text: str) -> None:
    """A line of progress. Whoever reads it may go away; the work goes on."""
    with contextlib.suppress(OSError):
        print(text, file=sys.stderr, flush=True)


def warn(text: str) -> None:
    say(coloured("warning: ", YELLOW) + text)


def complain(error: FlexError) -> None:
    first, *rest = error.message.splitlines() or [""]
    say(coloured("error: ", RED + BOLD) + first)
    for line in [*rest, *([error.hint] if error.hint else [])]:
        say(f"       {line}")
    say(coloured(f"       {error.name}, see {error.more}", DIM))


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Aligned columns without lines around them."""
    widths = [max(len(str(row[at])) for row in (columns, *rows)) for at in range(len(columns))]
    for row in (columns, *rows):
        line = "  ".join(str(cell).ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        show(coloured(line, BOLD, on=sys.stdout) if row is columns else line)
