"""Commands `keys add|list|rotate|prune`: keys that encrypt secrets in the database."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

import typer

from aks_flex_node.errors import BusyError, ConfigError
from aks_flex_rp import instance_lock
from aks_flex_rp.cli import output
from aks_flex_rp.cli.command_context import LocalOptions, with_settings
from aks_flex_rp.crypto import encryption

if TYPE_CHECKING:
    from collections import Counter

    from aks_flex_rp.key_rotation import RotationResult
    from aks_flex_rp.settings import ServiceSettings

app = typer.Typer()


@app.command()
@with_settings
def add(local: LocalOptions) -> None:
    """Add an encryption key.

    The service encrypts with it after its next start. Earlier keys still decrypt.
    """
    settings = local.settings
    key_id = encryption.create_key(settings.keys, os.environ)
    local.print_result(f"{key_id} added to {settings.keys}", {"id": key_id})
    output.print_note(
        "Next: restart all replicas of the service with the same keys. Then run `aks-flex-rp keys rotate`."
    )


@app.command("list")
@with_settings
def show_all(local: LocalOptions) -> None:
    """List the keys, with the number of secrets each encrypts."""
    settings = local.settings
    keys, used = encryption.list_keys(settings.keys, os.environ), asyncio.run(_in_use(settings))
    rows = [(each.id, "seals" if each is keys[0] else "opens", str(used[each.id]), each.source) for each in keys]
    known = {each.id for each in keys}
    rows += [(key, "MISSING", str(count), "-") for key, count in used.items() if key not in known]
    documents = [dict(zip(("id", "use", "sealed", "source"), row, strict=True)) for row in rows]
    local.print_result(output.format_table(rows, ("ID", "USE", "SEALED", "FROM"), "No keys."), documents)


@app.command()
@with_settings
def rotate(local: LocalOptions) -> None:
    """Re-encrypt all secrets with the newest key.

    If interrupted, run it again to continue.
    """
    settings = local.settings
    _refuse_stale_service(settings)
    outcome = asyncio.run(_reseal(settings))
    done = ", ".join(f"{kind}: {count}" for kind, count in outcome.resealed.items() if count) or "nothing to do"
    local.print_result(f"re-encrypted: {done}", {"resealed": outcome.resealed, "unopened": outcome.unopened})
    if outcome.unopened:
        raise ConfigError(
            "encryption-keys-incomplete",
            "Some values cannot be decrypted with any key:\n" + "\n".join(f"  {each}" for each in outcome.unopened),
            "Add the missing keys as further lines of the key file, or add the cluster or set the secret again.",
        )


@app.command()
@with_settings
def prune(local: LocalOptions) -> None:
    """Remove unused keys.

    Earlier backups still require the removed keys.
    """
    settings = local.settings
    _refuse_stale_service(settings)
    used = asyncio.run(_in_use(settings))
    own = [each for each in encryption.list_keys(settings.keys, os.environ)[1:] if each.source == str(settings.keys)]
    removed = {each.id for each in own if not used[each.id]}
    if removed:
        encryption.remove_keys(settings.keys, removed)
    needed = [each.id for each in own if used[each.id]]
    text = f"removed: {', '.join(sorted(removed)) or 'none'}"
    local.print_result(f"{text}; still needed: {', '.join(needed)}" if needed else text, {"removed": sorted(removed)})
    if needed:
        output.print_note("To remove the other keys, run `aks-flex-rp keys rotate` first.")


def _refuse_stale_service(settings: ServiceSettings) -> None:
    """Fails if the service was started before the newest key was added: it could not decrypt with that key."""
    running, keys = instance_lock.find_running(settings.state_dir), encryption.list_keys(settings.keys, os.environ)
    if running and keys and running.keys[:1] != (keys[0].id,):
        raise BusyError(
            "service-restart-required",
            f"The service (process {running.pid}) was started before the newest key was added.",
            "Restart the service and run the command again.",
        )


async def _in_use(settings: ServiceSettings) -> Counter[str]:
    from aks_flex_rp import key_rotation, raw_database

    async with raw_database.open_database(settings) as database:
        return await key_rotation.count_by_key(database)


async def _reseal(settings: ServiceSettings) -> RotationResult:
    from aks_flex_rp import key_rotation, raw_database
    from aks_flex_rp.service import open_sealer

    async with raw_database.open_database(settings) as database:
        return await key_rotation.reseal(database, open_sealer(settings))
