"""Terminal output: results on standard output (text, tables, JSON), messages and errors on standard error."""

from __future__ import annotations

import contextlib
import json
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aks_flex_node.errors import FlexError

RED, BOLD, DIM, GREEN, YELLOW, PLAIN = "\033[31m", "\033[1m", "\033[2m", "\033[32m", "\033[33m", "\033[0m"


def colored(text: str, colour: str, *, on: Any = None) -> str:
    """Colors the text if the stream (standard error by default) is a terminal."""
    return f"{colour}{text}{PLAIN}" if (on or sys.stderr).isatty() else text


def print_json(value: Any) -> None:
    """Prints one JSON document on standard output."""
    json.dump(value, sys.stdout, indent=2, default=str)
    sys.stdout.write("\n")


def print_line(text: str = "") -> None:
    with contextlib.suppress(BrokenPipeError):
        print(text, flush=True)


def print_message(text: str) -> None:
    """Prints a line on standard error. Ignores write errors, because a closed terminal must not stop a command."""
    with contextlib.suppress(OSError):
        print(text, file=sys.stderr, flush=True)


def warning_text(text: str) -> str:
    return colored("warning: ", YELLOW) + text


def print_error(error: FlexError) -> None:
    from aks_flex_node.error_catalog import has_entry

    first, *rest = error.message.splitlines() or [""]
    print_message(colored("error: ", RED + BOLD) + first)
    for line in [*rest, *([error.hint] if error.hint else [])]:
        print_message(f"       {line}")
    more = f": run `aks-flex-node explain {error.name}` for causes and remedies"
    print_message(colored(f"       {error.name}{more if has_entry(error.name, 'aks_flex_node') else ''}", DIM))


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Prints aligned columns without borders."""
    widths = [max(len(str(row[at])) for row in (columns, *rows)) for at in range(len(columns))]
    for row in (columns, *rows):
        line = "  ".join(str(cell).ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        print_line(colored(line, BOLD, on=sys.stdout) if row is columns else line)
