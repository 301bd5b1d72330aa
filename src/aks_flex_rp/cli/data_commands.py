"""Commands `backup`, `restore` and `migrate` for the database."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from aks_flex_node.errors import CommandUsageError
from aks_flex_rp.cli import command_context, output
from aks_flex_rp.cli.command_context import LocalOptions, YesOption, with_settings

if TYPE_CHECKING:
    from aks_flex_rp.settings import ServiceSettings

WITHOUT_KEYS_NOTE = """\
NOT IN THIS BACKUP: the encryption keys ({keys}), the admin key and the CA.
Without the keys, no secret in it can be decrypted: cluster connections and node credentials are lost.
Without the CA, machines with an existing configuration URL no longer trust the service.
Back them up separately, or run the backup with --with-keys and protect it like a password."""


@with_settings
def backup(
    local: LocalOptions,
    file: Annotated[Path, typer.Argument(help="Backup file. An existing file is replaced.")],
    with_keys: Annotated[
        bool,
        typer.Option("--with-keys", help="Include encryption keys, admin key and CA. The file is then a secret."),
    ] = False,
) -> None:
    """Back up the database to a file. The service can keep running."""
    from aks_flex_rp import backup as aks_flex_rp_backup

    settings = local.settings
    manifest = aks_flex_rp_backup.create_backup(settings, file, with_keys=with_keys)
    text = f"{file}: clusters: {manifest.clusters}, nodes: {manifest.nodes}, events: {manifest.events}"
    local.print_result(text, asdict(manifest))
    output.print_note(
        "The backup contains all keys. Protect it like a password."
        if with_keys
        else WITHOUT_KEYS_NOTE.format(keys=settings.keys)
    )


@with_settings
def restore(
    local: LocalOptions,
    file: Annotated[Path, typer.Argument(readable=False, help="Backup file.")],
    yes: YesOption = False,
) -> None:
    """Restore a backup. The service must be stopped.

    The current data is moved aside.
    """
    from aks_flex_rp import backup as aks_flex_rp_backup

    settings = local.settings
    if settings.sqlite_file.exists() and not yes:
        output.confirm(f"Replace the data in {settings.state_dir} with {file}?")
    done = aks_flex_rp_backup.restore_backup(settings, file)
    manifest = done.manifest
    text = f"Restored {settings.state_dir} to {manifest.made}: clusters: {manifest.clusters}, nodes: {manifest.nodes}"
    aside = str(done.aside) if done.aside else None
    local.print_result(text, {**asdict(manifest), "aside": aside, "sealedWithoutKey": done.keys_missing})
    if aside:
        output.print_note(f"The previous data is in {aside}. Delete it when the service works.")
    if done.keys_missing:
        output.print_note(
            f"KEYS ARE MISSING: {done.keys_missing} records were written with keys that are not in {settings.keys}. "
            "Add the missing keys as further lines. If they are lost, run `aks-flex-rp keys add`, "
            "`aks-flex-rp records list` and `aks-flex-rp records accept --all --digest DIGEST`, then add the "
            "clusters and set the secrets of the nodes again."
        )


@with_settings
def migrate(
    local: LocalOptions,
    check: Annotated[bool, typer.Option("--check", help="Only check whether a migration is required.")] = False,
    source: Annotated[
        Path | None,
        typer.Option(
            "--from",
            metavar="FILE",
            readable=False,
            help="Copy this SQLite file to the configured PostgreSQL database.",
        ),
    ] = None,
) -> None:
    """Migrate the database schema, or move to PostgreSQL.

    `serve` also migrates the schema when it starts.
    """
    import asyncio

    settings = local.settings
    before, newest = asyncio.run(_versions(settings))
    if check:
        text = "up to date" if before == newest else "run `aks-flex-rp migrate` or `aks-flex-rp serve` to migrate"
        local.print_result(f"schema {before}, latest {newest}: {text}", {"schema": before, "newest": newest})
        raise typer.Exit(0 if before == newest else 1)
    if source is None:
        asyncio.run(command_context.migrate_schema(settings))
        local.print_result(f"schema {newest}", {"schema": newest})
        return
    moved = _move(settings, source)
    rows = ", ".join(f"{table}: {count}" for table, count in moved.items())
    local.print_result(f"copied {rows}", moved)
    output.print_note("Keep the encryption keys and the old file. Start the service with the new database.")


def _move(settings: ServiceSettings, source: Path) -> dict[str, int]:
    import asyncio

    from aks_flex_rp import instance_lock, raw_database
    from aks_flex_rp.service import open_sealer
    from aks_flex_rp.store import sqlite

    address = raw_database.postgres_address(settings)
    if not address:
        raise CommandUsageError(
            "migration-target-missing",
            "No PostgreSQL database is configured.",
            "Set `databaseFile` to a file (mode 0600) that contains the postgresql:// URL.",
        )
    with instance_lock.exclusive(source.absolute().parent):
        raw_database.require_file(source)
        open_sealer(settings, source)  # refuses missing keys, before any key is created for the empty database
        sqlite.open_for_writing(source).close()  # migrates it
        asyncio.run(command_context.migrate_schema(settings))
        return asyncio.run(raw_database.copy_to_postgres(source, address))


async def _versions(settings: ServiceSettings) -> tuple[int, int]:
    from aks_flex_rp import raw_database

    postgres = bool(raw_database.postgres_address(settings))
    if not postgres and not settings.sqlite_file.exists():
        return 0, raw_database.newest_schema_version()
    async with raw_database.open_database(settings) as database:
        return await raw_database.schema_version(database), raw_database.newest_schema_version()
