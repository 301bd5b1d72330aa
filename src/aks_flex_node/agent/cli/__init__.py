"""The door `aks-flex-node`."""

from __future__ import annotations

import typer

from aks_flex_node import __version__

app = typer.Typer(
    name="aks-flex-node",
    help="Turn this machine into a worker node of an AKS cluster, and keep it one.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def root() -> None:
    """Turn this machine into a worker node of an AKS cluster, and keep it one."""


@app.command()
def version() -> None:
    """Print the version."""
    typer.echo(__version__)


def main() -> None:
    app()
