"""`aks-flex-lab tools …`: lists, installs and removes the programs that the lab runs."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from aks_flex_lab.architecture import Architecture
from aks_flex_lab.cli import console
from aks_flex_lab.cli.console import JsonOption, TerminalProgress, selected_layout
from aks_flex_lab.errors import UsageError
from aks_flex_lab.machines.base_system import BaseSystem, DebianRelease
from aks_flex_lab.tools import artifacts
from aks_flex_lab.tools.toolbox import Toolbox

app = typer.Typer(
    name="tools",
    help="Manage the programs that the lab runs.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)


@app.command("list")
def list_(ctx: typer.Context, json: JsonOption = False) -> None:
    """List the tools with version and state."""
    box = Toolbox(selected_layout(ctx).cache)
    rows = [(tool.name, tool.version, "ready" if box.is_ready(tool) else "missing") for tool in box.tools]
    if json:
        console.print_json([dict(zip(("name", "version", "state"), row, strict=True)) for row in rows])
    else:
        console.print_table(("TOOL", "VERSION", "STATE"), rows)


@app.command()
def install(
    ctx: typer.Context,
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME[@VERSION]", help="Tools, for example `runc@1.4.0`; all by default."),
    ] = None,
    source: Annotated[
        str,
        typer.Option(
            metavar="auto|release|build",
            help="Source of the tools; auto downloads the publisher's release if reachable, and builds otherwise.",
        ),
    ] = "auto",
    arch: Annotated[
        Architecture | None,
        typer.Option("--arch", help="Architecture of the tools; by default that of this host.", case_sensitive=False),
    ] = None,
) -> None:
    """Download or build the missing tools.

    The mirrors of all labs serve their release files from then on. Without names, also prepares the base systems
    of machines. For another architecture, installs only what its nodes need. Can be interrupted and run again at
    any time.
    """
    cache = selected_layout(ctx).cache
    host = Toolbox(cache)
    toolbox = host.for_architecture((arch or Architecture(host.arch)).value)
    start = time.monotonic()
    progress = TerminalProgress()
    toolbox.install(names or (), progress, source)
    artifacts.artifact_tree(toolbox, progress)
    if not names and not toolbox.is_foreign:
        for system in DebianRelease:
            BaseSystem(system, cache).build(progress)
    console.message(
        f"The tools are installed after {time.monotonic() - start:.1f} s. List them with `aks-flex-lab tools list`."
    )


@app.command()
def path(
    ctx: typer.Context,
    tool: Annotated[str, typer.Argument(metavar="TOOL", help="For example kubernetes, or kubernetes@1.35.4.")],
    command: Annotated[str, typer.Argument(metavar="COMMAND", help="For example kubelet.")],
) -> None:
    """Print the path of a program of a tool."""
    name, _, version = tool.partition("@")
    console.out.print(Toolbox(selected_layout(ctx).cache).path(name, command, version or None), markup=False)


@app.command()
def clean(ctx: typer.Context) -> None:
    """Remove unused tools, artifacts and incomplete builds.

    No lab may be running.
    """
    layout = selected_layout(ctx)
    if layout.labs_directory.exists() and (
        labs := [path.name for path in layout.labs_directory.iterdir() if path.is_dir()]
    ):
        raise UsageError(
            "lab-already-running",
            f"These labs are running and use the tools: {', '.join(labs)}.",
            "Run `aks-flex-lab --lab NAME down` for each of them.",
        )
    toolbox = Toolbox(layout.cache)
    removed = [path.name for path in toolbox.clean()]
    if artifacts.clean_artifacts(*toolbox.all_architectures()):
        removed.append("artifacts")
    console.message(f"Removed: {', '.join(removed) or 'nothing'}.")
