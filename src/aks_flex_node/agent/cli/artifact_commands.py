"""`artifacts …`: lists, bundles and removes downloaded artifacts and unused versions."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from aks_flex_node.agent.cli import terminal
from aks_flex_node.agent.cli.options import Config, Json, Sets
from aks_flex_node.agent.text import pluralize
from aks_flex_node.errors import CommandUsageError

SHAPES = (".tar", ".tar.gz", ".tgz")
ARCHITECTURES = ("amd64", "arm64")
Arch = Annotated[str, typer.Option("--arch", help="Target architecture: amd64 or arm64; this machine's by default.")]

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="List, bundle and remove artifacts of a node.")


@app.command("list")
def list_(config: Config = None, sets: Sets = None, json: Json = False) -> None:
    """List the artifacts of the configuration and their state."""
    from dataclasses import astuple

    from aks_flex_node.agent import context, program_inventory

    engine = context.command_engine(config, sets)
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
    arch: Arch = "",
    json: Json = False,
) -> None:
    """Download all artifacts into a bundle for offline machines.

    On these machines, set `artifacts.bundle: /path/of/bundle.tar` in the configuration.
    """
    from aks_flex_node.agent import context, program_inventory

    refuse_bundle_options(target, arch)
    engine = context.command_engine(config, sets)
    arch = arch or engine.machine.arch
    result = program_inventory.bundle_programs(engine, target, arch)
    if json:
        terminal.print_json(result)
    else:
        terminal.print_line(f"{target}: {pluralize(len(result.artifacts), 'file')} for {arch}.")


@app.command()
def pins(
    config: Config = None,
    sets: Sets = None,
    arch: Arch = "",
    json: Json = False,
) -> None:
    """Print the hashes of all artifacts of the configuration.

    Machines that reach only a mirror read them from /etc/aks-flex-node/checksums.txt.
    """
    from aks_flex_node.agent import context, program_inventory

    refuse_architecture(arch)
    engine = context.command_engine(config, sets)
    found = program_inventory.pin_artifacts(engine, arch or engine.machine.arch)
    if json:
        terminal.print_json([vars(one) for one in found])
    else:
        for one in found:
            terminal.print_line(f"{one.digest.partition(':')[2]}  {one.url}")


def refuse_bundle_options(target: Path, arch: str) -> None:
    """Raises CommandUsageError for an unsupported target or architecture, before any download."""
    # A directory name may end with a version, so a numeric suffix is not a file type.
    if not target.name.endswith(SHAPES) and target.suffix and not target.suffix[1:].isdigit():
        raise CommandUsageError(
            "offline-bundle-format-unsupported",
            f"A bundle cannot be a {target.suffix} file.",
            f"Use a directory, or a file name ending in {' or '.join(SHAPES)}.",
        )
    refuse_architecture(arch)


def refuse_architecture(arch: str) -> None:
    if arch and arch not in ARCHITECTURES:
        raise CommandUsageError(
            "bundle-architecture-unsupported",
            f"Architecture {arch!r} is not supported.",
            "Use amd64 or arm64.",
        )


@app.command()
def clean(
    config: Config = None,
    old: Annotated[bool, typer.Option("--old", help="Also remove installed versions that are not in use.")] = False,
    json: Json = False,
) -> None:
    """Remove downloaded artifacts. Keeps installed versions unless `--old` is set."""
    from aks_flex_node.agent import context, program_inventory
    from aks_flex_node.agent.reconcile.lock import exclusive

    context.require_root()
    with exclusive():
        settings, _ = context.load_config_or_default(context.ConfigSelection(config))
        freed = program_inventory.remove_downloads(settings)
        removed = program_inventory.remove_unused(context.make_engine(settings)) if old else {}
    freed += sum(removed.values())
    if json:
        terminal.print_json({"bytes": freed, "versions": list(removed)})
    else:
        for path in removed:
            terminal.print_line(f"removed {path}")
        terminal.print_line(f"{freed / 1e6:.0f} MB freed.")
