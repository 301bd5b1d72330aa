"""The `aks-flex-lab` command: registers the subcommands and turns errors into exit codes."""

from __future__ import annotations

import errno
import os
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from aks_flex_lab.cli import console, fault, lab_commands, machine, mirror, network, pool, tools
from aks_flex_lab.errors import HostError, LabError
from aks_flex_lab.layout import lab_layout
from aks_flex_lab.tools.debian_tools import SYSTEM_PATHS
from aks_flex_node import __version__
from aks_flex_node.errors import FlexError
from aks_flex_node.version_option import VersionOption  # noqa: TC001 - typer reads it at run time


class LabCommandGroup(TyperGroup):
    """Prints every error on standard error and exits with its exit code."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except FlexError as error:
            reported = error
        except PermissionError as error:
            if os.geteuid() == 0:
                raise
            reported = HostError(
                "root-required", f"Only root can access {error.filename}.", "Run the command with sudo."
            )
        except OSError as error:
            reported = _from_os_error(error)
        console.print_error(reported, ctx.obj)
        raise typer.Exit(reported.exit_code)


def _from_os_error(error: OSError) -> LabError:
    if error.errno == errno.ENOSPC:
        return HostError(
            "disk-full", f"The disk is full: {error.filename} was not written.", "Free disk space, then retry."
        )
    return HostError(
        "file-access-failed",
        f"{error.filename or 'A file or a process of the lab'}: {error.strerror or error}.",
        "Run the same command again. If it fails again, check AKS_FLEX_LAB_HOME and AKS_FLEX_LAB_CACHE.",
    )


app = typer.Typer(
    name="aks-flex-lab",
    cls=LabCommandGroup,
    help="Runs a cloud and edge sites on one Linux machine: a real Kubernetes control plane, and edge machines that "
    "are real systemd hosts.",
    epilog="Start with `aks-flex-lab up`. Exit codes: 0 success, 1 failed, 2 wrong command line, 3 unsuitable host, "
    "4 tool failed, 5 component failed, 130 interrupted.",
    no_args_is_help=True,
    rich_markup_mode=None,  # plain help does not cut option names
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def lab(
    ctx: typer.Context,
    lab: Annotated[
        str,
        typer.Option(
            "--lab",
            metavar="NAME",
            envvar="AKS_FLEX_LAB",
            help="Name of the lab; several labs can run at the same time.",
        ),
    ] = "default",
    version: VersionOption = False,  # noqa: ARG001 - handled by its callback
) -> None:
    ctx.obj = lab_layout(lab)


lab_commands.add_commands(app)
app.add_typer(machine.app, name="machine")
app.add_typer(pool.app, name="pool")
app.add_typer(network.app, name="network")
app.add_typer(mirror.app, name="mirror")
app.add_typer(fault.app, name="fault")
app.add_typer(tools.app, name="tools")


@app.command()
def version() -> None:
    """Print the version."""
    console.out.print(__version__)


def main() -> None:
    # A plain `su` leaves root without sbin in PATH, which contains many programs that the lab runs.
    os.environ["PATH"] = os.pathsep.join((os.environ.get("PATH", os.defpath), *SYSTEM_PATHS))
    app(prog_name="aks-flex-lab")
