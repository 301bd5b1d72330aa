"""`backup`, `restore` and `migrate`: what is done to a service's data as a whole."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from aks_flex_node.errors import CommandUsageError
from aks_flex_node.rp import presence
from aks_flex_node.rp.cli import options, screen, stores
from aks_flex_node.rp.cli.options import Config, Json, State

if TYPE_CHECKING:
    from aks_flex_node.rp.settings import ServiceSettings

WITHOUT = """\
NOT IN THIS BACKUP: the keys ({keys}), the admin key and the CA.
Without the keys no secret in it can be read: no connection to a cluster, no node's credentials.
Without the CA, machines that were given a URL no longer trust the service.
Keep them elsewhere, or make the backup with --with-keys and guard it as you guard a password."""


def attach(app: typer.Typer) -> None:
    app.command()(backup)
    app.command()(restore)
    app.command()(migrate)


def backup(
    file: Annotated[Path, typer.Argument(help="Where to; replaced when it is there.")],
    with_keys: Annotated[bool, typer.Option("--with-keys", help="Keys, admin key and CA, too: a secret.")] = False,
    config: Config = None,
    state: State = None,
    json: Json = False,
) -> None:
    """Write all of the database into one file, as of now, while the service goes on."""
    from aks_flex_node.rp import backups

    settings = options.load(config, state)
    made = backups.make(settings, file, with_keys=with_keys)
    text = f"{file}: whole, with clusters: {made.clusters}, nodes: {made.nodes}, events: {made.events}"
    screen.say(text, asdict(made), json)
    screen.note("it holds all keys: guard it as a password" if with_keys else WITHOUT.format(keys=settings.keys))


def restore(
    file: Annotated[Path, typer.Argument(help="A backup.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    config: Config = None,
    state: State = None,
    json: Json = False,
) -> None:
    """Put a backup in the place of what is there, which is kept aside. The service must not run."""
    from aks_flex_node.rp import backups

    settings = options.load(config, state)
    if settings.sqlite_file.exists() and not yes:
        screen.confirm(f"Replace what is in {settings.state_dir} by {file}?")
    done = backups.restore(settings, file)
    made = done.manifest
    text = f"{settings.state_dir} is as of {made.made}, with clusters: {made.clusters}, nodes: {made.nodes}"
    aside = str(done.aside) if done.aside else None
    screen.say(text, {**asdict(made), "aside": aside, "sealedWithoutKey": done.keys_missing}, json)
    if aside:
        screen.note(f"what was there before is in {aside}; delete it when all is well")
    if done.keys_missing:
        screen.note(
            f"KEYS ARE MISSING: {done.keys_missing} secrets were sealed with keys that are not in {settings.keys}. "
            "Put those back as further lines, or add the clusters and write the nodes' secrets anew."
        )


def migrate(
    check: Annotated[bool, typer.Option("--check", help="Only say whether there is anything to do.")] = False,
    source: Annotated[
        Path | None,
        typer.Option(
            "--from", metavar="FILE", help="Copy this SQLite file into the PostgreSQL of the configuration."
        ),
    ] = None,
    config: Config = None,
    state: State = None,
    json: Json = False,
) -> None:
    """Bring the database to this program's schema, which `serve` does, too; or move from SQLite to PostgreSQL."""
    settings = options.load(config, state)
    before, newest = asyncio.run(_versions(settings))
    if check:
        text = "nothing to do" if before == newest else "`aks-flex-rp migrate` or `serve` brings it there"
        screen.say(f"schema {before}, newest {newest}: {text}", {"schema": before, "newest": newest}, json)
        raise typer.Exit(0 if before == newest else 1)
    if source is None:
        asyncio.run(stores.bring_to_schema(settings))
        screen.say(f"schema {newest}", {"schema": newest}, json)
        return
    moved = _move(settings, source)
    rows = ", ".join(f"{table}: {count}" for table, count in moved.items())
    screen.say(f"copied {rows}", moved, json)
    screen.note("the same keys are needed as before; start the service on the new database, and keep the old file")


def _move(settings: ServiceSettings, source: Path) -> dict[str, int]:
    from aks_flex_node.rp import databases, moving

    address = databases.postgres_address(settings)
    if not address:
        raise CommandUsageError(
            "migrate-target-missing",
            "The configuration names no PostgreSQL to copy into.",
            "Set databaseFile to a file, mode 0600, that holds its postgresql:// address.",
        )
    with presence.alone(source.absolute().parent):
        asyncio.run(stores.bring_to_schema(settings))
        return asyncio.run(moving.copy(source, address))


async def _versions(settings: ServiceSettings) -> tuple[int, int]:
    from aks_flex_node.rp import databases

    postgres = bool(databases.postgres_address(settings))
    if not postgres and not settings.sqlite_file.exists():
        return 0, databases.newest()
    async with databases.opened(settings) as database:
        return await databases.schema_version(database, postgres=postgres), databases.newest()
