"""Commands `backup`, `restore` and `migrate`."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from aks_flex_node.errors import CommandUsageError
from aks_flex_rp import instance_lock
from aks_flex_rp.cli import command_context, output
from aks_flex_rp.cli.command_context import ConfigOption, JsonOption, StateOption

if TYPE_CHECKING:
    from aks_flex_rp.settings import ServiceSettings

WITHOUT_KEYS_NOTE = """\
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
    config: ConfigOption = None,
    state: StateOption = None,
    json: JsonOption = False,
) -> None:
    """Write all of the database into one file, as of now, while the service goes on."""
    from aks_flex_rp import backup as aks_flex_rp_backup

    settings = command_context.load_settings(config, state)
    made = aks_flex_rp_backup.create_backup(settings, file, with_keys=with_keys)
    text = f"{file}: whole, with clusters: {made.clusters}, nodes: {made.nodes}, events: {made.events}"
    output.print_result(text, asdict(made), json)
    output.print_note(
        "it holds all keys: guard it as a password" if with_keys else WITHOUT_KEYS_NOTE.format(keys=settings.keys)
    )


def restore(
    file: Annotated[Path, typer.Argument(help="A backup.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    config: ConfigOption = None,
    state: StateOption = None,
    json: JsonOption = False,
) -> None:
    """Put a backup in the place of what is there, which is kept aside. The service must not run."""
    from aks_flex_rp import backup as aks_flex_rp_backup

    settings = command_context.load_settings(config, state)
    if settings.sqlite_file.exists() and not yes:
        output.confirm(f"Replace what is in {settings.state_dir} by {file}?")
    done = aks_flex_rp_backup.restore_backup(settings, file)
    made = done.manifest
    text = f"{settings.state_dir} is as of {made.made}, with clusters: {made.clusters}, nodes: {made.nodes}"
    aside = str(done.aside) if done.aside else None
    output.print_result(text, {**asdict(made), "aside": aside, "sealedWithoutKey": done.keys_missing}, json)
    if aside:
        output.print_note(f"what was there before is in {aside}; delete it when all is well")
    if done.keys_missing:
        output.print_note(
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
    config: ConfigOption = None,
    state: StateOption = None,
    json: JsonOption = False,
) -> None:
    """Bring the database to this program's schema, which `serve` does, too; or move from SQLite to PostgreSQL."""
    settings = command_context.load_settings(config, state)
    before, newest = asyncio.run(_versions(settings))
    if check:
        text = "nothing to do" if before == newest else "`aks-flex-rp migrate` or `serve` brings it there"
        output.print_result(f"schema {before}, newest {newest}: {text}", {"schema": before, "newest": newest}, json)
        raise typer.Exit(0 if before == newest else 1)
    if source is None:
        asyncio.run(command_context.migrate_schema(settings))
        output.print_result(f"schema {newest}", {"schema": newest}, json)
        return
    moved = _move(settings, source)
    rows = ", ".join(f"{table}: {count}" for table, count in moved.items())
    output.print_result(f"copied {rows}", moved, json)
    output.print_note(
        "the same keys are needed as before; start the service on the new database, and keep the old file"
    )


def _move(settings: ServiceSettings, source: Path) -> dict[str, int]:
    from aks_flex_rp import raw_database

    address = raw_database.postgres_address(settings)
    if not address:
        raise CommandUsageError(
            "migration-target-missing",
            "The configuration names no PostgreSQL to copy into.",
            "Set databaseFile to a file, mode 0600, that holds its postgresql:// address.",
        )
    with instance_lock.exclusive(source.absolute().parent):
        asyncio.run(command_context.migrate_schema(settings))
        return asyncio.run(raw_database.copy_to_postgres(source, address))


async def _versions(settings: ServiceSettings) -> tuple[int, int]:
    from aks_flex_rp import raw_database

    postgres = bool(raw_database.postgres_address(settings))
    if not postgres and not settings.sqlite_file.exists():
        return 0, raw_database.newest_schema_version()
    async with raw_database.open_database(settings) as database:
        return await raw_database.schema_version(database, postgres=postgres), raw_database.newest_schema_version()
