"""All commands, and what becomes of an error."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from aks_flex_node import __version__
from aks_flex_node.errors import FlexError

HELP = "Turn this machine into a worker node of an AKS cluster, and keep it one."

app = typer.Typer(
    name="aks-flex-node",
    help=HELP,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)


@app.callback(epilog="Exit codes and error names: docs/troubleshooting.md")
def root(
    version: Annotated[bool, typer.Option("--version", help="Print the version.", is_eager=True)] = False,
) -> None:
    """Turn this machine into a worker node of an AKS cluster, and keep it one."""
    if version:
        typer.echo(__version__)
        raise typer.Exit


@app.command()
def version() -> None:
    """Print the version."""
    typer.echo(__version__)


def _register() -> None:
    from aks_flex_node.agent.cli import configs, looking, node, shelves

    node.register(app)
    looking.register(app)
    app.add_typer(configs.app, name="config")
    app.add_typer(shelves.app, name="artifacts")


_register()


def run() -> None:
    try:
        app()
    except FlexError as error:
        from aks_flex_node.agent.cli.screen import complain

        complain(error)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        print("\nInterrupted. Run the same command again: it goes on where it stopped.", file=sys.stderr)
        sys.exit(130)
