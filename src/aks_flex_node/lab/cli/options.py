"""Options and arguments that several commands share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, cast

import typer

if TYPE_CHECKING:
    from aks_flex_node.lab.layout import Layout

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of a table.")]


def this_lab(ctx: typer.Context) -> Layout:
    """The lab that `--lab` named."""
    return cast("Layout", ctx.find_root().obj)
