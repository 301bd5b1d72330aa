"""The typer application: registers all commands and converts errors into messages and exit codes."""

from __future__ import annotations

import sys
from typing import NoReturn

import typer

from aks_flex_node import __version__
from aks_flex_node.agent.cli import terminal
from aks_flex_node.agent.cli.options import Json
from aks_flex_node.errors import FlexError, MachineError
from aks_flex_node.version_option import VersionOption

HELP = "Join this machine to an AKS cluster as a worker node and manage it."
INTERRUPTED = 130

app = typer.Typer(
    name="aks-flex-node",
    help=HELP,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 80},
)


@app.callback(
    epilog="Exit codes: 0 success, 1 failed, 2 wrong command line, 3 wrong configuration, 4 unsuitable machine, "
    "5 artifact failed, 6 cluster failed, 7 locked, 130 interrupted. `aks-flex-node explain NAME` explains an error."
)
def root(
    version: VersionOption = False,
) -> None:
    """Join this machine to an AKS cluster as a worker node and manage it."""


@app.command()
def version(json: Json = False) -> None:
    """Print the version."""
    if json:
        terminal.print_json({"version": __version__})
    else:
        typer.echo(__version__)


def _register() -> None:
    from aks_flex_node.agent.cli import (
        arc_commands,
        artifact_commands,
        config_commands,
        key_commands,
        node_commands,
        status_commands,
        token_commands,
        vpn_commands,
    )

    node_commands.register(app)
    status_commands.register(app)
    vpn_commands.register(app)
    app.add_typer(arc_commands.app, name="arc")
    app.add_typer(config_commands.app, name="config")
    app.add_typer(artifact_commands.app, name="artifacts")
    app.add_typer(token_commands.app, name="token")
    app.add_typer(key_commands.app, name="node-key")


_register()


def _end(error: FlexError) -> NoReturn:
    terminal.print_error(error)
    sys.exit(error.exit_code)


def run(application: typer.Typer = app) -> None:
    try:
        application()
    except FlexError as error:
        _end(error)
    except PermissionError as error:  # read-only commands do not check for root first
        _end(
            MachineError(
                "root-required",
                f"{error.filename} cannot be read: {error.strerror}.",
                "Run the same command with `sudo`.",
            )
        )
    except SystemExit as end:
        if end.code == INTERRUPTED:  # typer exits silently on Ctrl-C
            print("\nInterrupted. Run the same command again to continue.", file=sys.stderr)
        raise
