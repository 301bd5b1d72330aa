"""Options and arguments that several commands share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, cast

import typer

if TYPE_CHECKING:
    from aks_flex_lab.layout import LabLayout

JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of a table.")]


def selected_layout(ctx: typer.Context) -> LabLayout:
    """The lab that `--lab` named."""
    return cast("LabLayout", ctx.find_root().obj)
