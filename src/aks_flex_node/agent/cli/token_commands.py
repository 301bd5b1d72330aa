"""`token`: prints tokens of this node's Azure identity."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from aks_flex_node.agent.cli.exec_credential import IDENTITY_FILE, print_credential

app = typer.Typer(no_args_is_help=True, help="Tokens of this node's Azure identity.")


@app.callback()
def _group() -> None:
    """Tokens of this node's Azure identity."""


@app.command()
def kubernetes(
    identity: Annotated[
        Path, typer.Option("--identity", metavar="FILE", help="Who the node is to Azure, as the join has written it.")
    ] = Path(IDENTITY_FILE),
) -> None:
    """Print a token for the API server, as a kubelet or kubectl asks for it (ExecCredential).

    It is kept until shortly before its end. On a terminal, only how long it lasts is shown.
    """
    print_credential(identity)
