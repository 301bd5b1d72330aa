"""`token`: prints tokens of this node's Azure identity."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from aks_flex_node.agent.cli.exec_credential import IDENTITY_FILE, print_credential

app = typer.Typer(no_args_is_help=True, help="Print tokens of this node's Azure identity.")


@app.callback()
def _group() -> None:
    """Print tokens of this node's Azure identity."""


@app.command()
def kubernetes(
    identity: Annotated[
        Path, typer.Option("--identity", metavar="FILE", help="Identity file written by the join.")
    ] = Path(IDENTITY_FILE),
) -> None:
    """Print a token for the API server as an ExecCredential.

    The token is cached until shortly before it expires. On a terminal, only its remaining lifetime is shown.
    """
    print_credential(identity)
