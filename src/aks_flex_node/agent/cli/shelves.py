"""`aks-flex-node artifacts …`: programs that were fetched, and bundles for machines without a network."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from aks_flex_node.agent.cli.options import Config, Json, Sets

if TYPE_CHECKING:
    from aks_flex_node.agent.engine.resources import Program

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Programs of a node: fetched, kept, bundled.")


@app.command("list")
def list_(config: Config = None, sets: Sets = None, json: Json = False) -> None:
    """List the programs that this configuration needs, and whether they are here."""
    from aks_flex_node.agent.cli import door, screen
    from aks_flex_node.agent.components.sequence import SEQUENCE
    from aks_flex_node.agent.engine.observing import damage

    engine = door.engine(door.load(door.Given(config, tuple(sets or ()))).config)
    rows = []
    for component in SEQUENCE:
        for program in component.desired(engine.config, engine.machine).programs:
            state = damage(engine.host, program, engine.ledger.owned(component.name)) or "installed"
            rows += [(program.component, program.version, state, one.url) for one in program.artifacts]
    if json:
        screen.facts([dict(zip(("component", "version", "state", "url"), row, strict=True)) for row in rows])
    else:
        screen.table(("COMPONENT", "VERSION", "STATE", "FROM"), rows)


@app.command()
def bundle(
    target: Annotated[
        Path, typer.Argument(metavar="TARGET", help="A directory, or a file ending in .tar or .tar.gz.")
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
    from dataclasses import replace

    from aks_flex_node.agent.artifacts import make_bundle
    from aks_flex_node.agent.cli import door, screen
    from aks_flex_node.agent.components.sequence import SEQUENCE
    from aks_flex_node.agent.engine import workshop

    engine = door.engine(door.load(door.Given(config, tuple(sets or ()))).config)
    machine = replace(engine.machine, arch=arch or engine.machine.arch)
    programs: list[Program] = []
    for component in SEQUENCE:
        programs += component.desired(engine.config, machine).programs
    trees = [workshop.tree(program) for program in programs]
    cache = Path(workshop.cache_dir(engine.config))
    made = make_bundle(trees, workshop.sources(engine.config), cache, target, machine.arch)
    if json:
        screen.facts(made)
    else:
        screen.show(f"{target}: {len(made.artifacts)} files for {machine.arch}.")


@app.command()
def clean(config: Config = None, json: Json = False) -> None:
    """Remove what was downloaded. What is installed stays."""
    from aks_flex_node.agent.artifacts import clean as clean_cache
    from aks_flex_node.agent.cli import door, screen
    from aks_flex_node.agent.engine.locking import alone
    from aks_flex_node.agent.engine.workshop import cache_dir

    door.require_root()
    with alone():
        settings, _ = door.load_leniently(door.Given(config))
        freed = clean_cache(Path(cache_dir(settings)), set())
    if json:
        screen.facts({"bytes": freed})
    else:
        screen.show(f"{freed / 1e6:.0f} MB freed.")
