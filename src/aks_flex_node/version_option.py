"""The option `--version` of the three programs."""

from __future__ import annotations

from typing import Annotated

import typer

from aks_flex_node import __version__


def _show_version(requested: bool) -> None:
    if requested:
        typer.echo(__version__)
        raise typer.Exit


VersionOption = Annotated[  # eager: handled before any command
    bool, typer.Option("--version", help="Print the version.", callback=_show_version, is_eager=True)
]
