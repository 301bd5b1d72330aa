"""What commands say: short lines for people, JSON for machines."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aks_flex_node.errors import FlexError


def say(text: str, document: Any = None, as_json: bool = False) -> None:
    typer.echo(json.dumps(document, indent=2, ensure_ascii=False) if as_json else text)


def note(text: str) -> None:
    """Beside the answer, for whoever watches."""
    typer.echo(text, err=True)


def confirm(question: str) -> None:
    """Of a person at a terminal; a script means what it says."""
    if sys.stdin.isatty():
        typer.confirm(question, abort=True, err=True)


def table(rows: Sequence[Sequence[str]], head: Sequence[str]) -> str:
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in (head, *rows)
    ]
    return "\n".join(lines)


def complain(error: FlexError) -> None:
    red, plain = ("\x1b[31m", "\x1b[0m") if sys.stderr.isatty() else ("", "")
    typer.echo(f"{red}error{plain}: {error.message}", err=True)
    if error.hint:
        typer.echo(f"  {error.hint}", err=True)
    typer.echo(f"  more: {error.more}", err=True)
