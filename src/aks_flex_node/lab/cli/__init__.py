"""The door `aks-flex-lab`: one thin function per command, grouped as a person would look for them."""

from __future__ import annotations

import errno
import sys
from typing import Annotated

import typer

from aks_flex_node import __version__
from aks_flex_node.lab.cli import cloud, fault, machine, mirror, screen, tools
from aks_flex_node.lab.errors import HostError, LabError
from aks_flex_node.lab.layout import layout

app = typer.Typer(
    name="aks-flex-lab",
    help="A whole cloud and edge site on one Linux machine: a real Kubernetes control plane, and edge machines "
    "that are real systemd hosts.",
    epilog="Start with `aks-flex-lab up`. Exit codes: 0 done, 1 failed, 2 wrong words, 3 this machine lacks "
    "something, 4 a tool could not be made, 5 a part of the lab failed.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def lab(
    ctx: typer.Context,
    lab: Annotated[
        str,
        typer.Option("--lab", metavar="NAME", envvar="AKS_FLEX_LAB", help="Which lab; several can run at once."),
    ] = "default",
) -> None:
    ctx.obj = layout(lab)


cloud.attach(app)
app.add_typer(machine.app, name="machine")
app.add_typer(mirror.app, name="mirror")
app.add_typer(fault.app, name="fault")
app.add_typer(tools.app, name="tools")


@app.command()
def version() -> None:
    """Print the version."""
    screen.out.print(__version__)


def main() -> None:
    try:
        app()
    except LabError as error:
        screen.complain(error)
        sys.exit(error.exit_code)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        full = HostError("disk-full", f"No space is left to write {error.filename}.", "Make room, then try again.")
        screen.complain(full)
        sys.exit(full.exit_code)
