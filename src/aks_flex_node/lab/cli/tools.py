"""`aks-flex-lab tools`: the real programs the lab runs."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Annotated

import typer

from aks_flex_node.lab.cli import screen
from aks_flex_node.lab.cli.options import Json, this_lab
from aks_flex_node.lab.cli.progress import ScreenProgress
from aks_flex_node.lab.errors import UsageError
from aks_flex_node.lab.machines.bases import Base, System
from aks_flex_node.lab.tools import artifacts
from aks_flex_node.lab.tools.toolbox import Toolbox

app = typer.Typer(
    name="tools",
    help="The real programs the lab runs: Kubernetes, containerd, runc and the rest.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)


@app.command("list")
def list_(ctx: typer.Context, json: Json = False) -> None:
    """Show each tool with its version, where it came from, its size and its state."""
    states = Toolbox(this_lab(ctx).cache).states()
    if json:
        screen.facts([asdict(state) for state in states])
        return
    rows = [
        (
            state.name,
            state.version or "-",
            state.source or "-",
            screen.megabytes(state.size) if state.size else "-",
            state.state,
        )
        for state in states
    ]
    screen.table(("TOOL", "VERSION", "SOURCE", "SIZE", "STATE"), rows)


@app.command()
def install(
    ctx: typer.Context,
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME[@VERSION]", help="Which tools, for example `runc@1.4.0`; all by default."),
    ] = None,
    source: Annotated[
        str,
        typer.Option(
            metavar="auto|release|build",
            help="Where to take them from: the publisher's release when it can be reached, else a build.",
        ),
    ] = "auto",
) -> None:
    """Fetch or build what is missing: programs, what the mirror serves, and the base systems of machines.

    With names, just those programs. Can be interrupted and run again at any time.
    """
    cache = this_lab(ctx).cache
    toolbox = Toolbox(cache)
    start = time.monotonic()
    progress = ScreenProgress()
    toolbox.install(names or (), progress, source)
    if not names:
        artifacts.artifact_tree(toolbox, progress)
        for system in System:
            Base(system, cache).build(progress)
    screen.say(
        f"The tools are ready, after {time.monotonic() - start:.1f} s. See them with `aks-flex-lab tools list`."
    )


@app.command()
def path(
    ctx: typer.Context,
    tool: Annotated[str, typer.Argument(metavar="TOOL", help="For example kubernetes, or kubernetes@1.33.13.")],
    command: Annotated[str, typer.Argument(metavar="COMMAND", help="For example kubelet.")],
) -> None:
    """Print where a program of a tool is."""
    name, _, version = tool.partition("@")
    screen.out.print(Toolbox(this_lab(ctx).cache).path(name, command, version or None), markup=False)


@app.command()
def clean(ctx: typer.Context) -> None:
    """Remove tools and artifacts that the catalog no longer uses, and what was left half-made. No lab may be up."""
    layout = this_lab(ctx)
    if layout.homes.exists() and (labs := [path.name for path in layout.homes.iterdir() if path.is_dir()]):
        raise UsageError(
            "lab-up", f"These labs are up and use the tools: {', '.join(labs)}.", "Take them down first."
        )
    toolbox = Toolbox(layout.cache)
    freed = artifacts.clean(toolbox) + toolbox.clean()
    screen.say(f"{screen.megabytes(freed)} freed.")
