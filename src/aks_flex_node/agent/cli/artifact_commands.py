"""`artifacts …`: lists, bundles and removes downloaded artifacts and unused versions."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from aks_flex_node.agent.cli.options import Config, Json, Sets
from aks_flex_node.agent.text import pluralize

SHAPES = (".tar", ".tar.gz", ".tgz")
ARCHITECTURES = ("amd64", "arm64")

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Programs of a node: fetched, kept, bundled.")


@app.command("list")
def list_(config: Config = None, sets: Sets = None, json: Json = False) -> None:
    """List the programs that this configuration needs, and whether they are here."""
    from dataclasses import astuple

    from aks_flex_node.agent import context, program_inventory
    from aks_flex_node.agent.cli import terminal

    engine = context.make_engine(context.load_config(context.ConfigSelection(config, tuple(sets or ()))).config)
    found = program_inventory.list_artifacts(engine)
    if json:
        terminal.print_json([vars(one) for one in found])
    else:
        terminal.print_table(("COMPONENT", "VERSION", "STATE", "FROM"), [astuple(one) for one in found])


@app.command()
def bundle(
    target: Annotated[
        Path, typer.Argument(metavar="TARGET", help="A directory, or a file ending in .tar, .tar.gz or .tgz.")
    ],
    config: Config = None,
    sets: Sets = None,
    arch: Annotated[
        str, typer.Option("--arch", help="For which machines: amd64 or arm64; this one's by default.")
    ] = "",
    json: Json = False,
) -> None:
    """Fetch all programs of this configuration into one bundle, for machines without a network.

    There, say `artifacts.bundle: /path/of/bundle.tar` in the configuration.
    """
    from aks_flex_node.agent import context, program_inventory
    from aks_flex_node.agent.cli import terminal

    refuse_bundle_options(target, arch)
    engine = context.make_engine(context.load_config(context.ConfigSelection(config, tuple(sets or ()))).config)
    arch = arch or engine.machine.arch
    made = program_inventory.bundle_programs(engine, target, arch)
    if json:
        terminal.print_json(made)
    else:
        terminal.print_line(f"{target}: {pluralize(len(made.artifacts), 'file')} for {arch}.")


def refuse_bundle_options(target: Path, arch: str) -> None:
    """Refuse before anything is fetched what would not be what was meant."""
    from aks_flex_node.errors import CommandUsageError

    # A directory may be named after a version: what is a number is no kind of file.
    if not target.name.endswith(SHAPES) and target.suffix and not target.suffix[1:].isdigit():
        raise CommandUsageError(
            "offline-bundle-format-unsupported",
            f"A bundle cannot be a {target.suffix} file.",
            f"Name a directory, or a file that ends in {' or '.join(SHAPES)}.",
        )
    if arch and arch not in ARCHITECTURES:
        raise CommandUsageError(
            "bundle-architecture-unsupported",
            f"There are no nodes of architecture {arch!r}.",
            "Write amd64 or arm64.",
        )


@app.command()
def clean(
    config: Config = None,
    old: Annotated[
        bool, typer.Option("--old", help="Remove installed versions that are no longer in use, too.")
    ] = False,
    json: Json = False,
) -> None:
    """Remove what was downloaded. What is installed stays, unless `--old` says otherwise."""
    from aks_flex_node.agent import context, program_inventory
    from aks_flex_node.agent.cli import terminal
    from aks_flex_node.agent.reconcile.lock import exclusive

    context.require_root("remove programs")
    with exclusive():
        settings, _ = context.load_config_or_default(context.ConfigSelection(config))
        freed = program_inventory.remove_downloads(settings)
        gone = program_inventory.remove_unused(context.make_engine(settings)) if old else {}
    freed += sum(gone.values())
    if json:
        terminal.print_json({"bytes": freed, "versions": list(gone)})
    else:
        for path in gone:
            terminal.print_line(f"removed {path}")
        terminal.print_line(f"{freed / 1e6:.0f} MB freed.")
