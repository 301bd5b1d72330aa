"""Commands `keys add|list|rotate|prune`: keys that encrypt secrets in the database."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

import typer

from aks_flex_node.errors import BusyError, ConfigError
from aks_flex_rp import instance_lock
from aks_flex_rp.cli import command_context, output
from aks_flex_rp.cli.command_context import ConfigOption, JsonOption, StateOption
from aks_flex_rp.crypto import encryption

if TYPE_CHECKING:
    from collections import Counter

    from aks_flex_rp.key_rotation import RotationResult
    from aks_flex_rp.settings import ServiceSettings

app = typer.Typer(
    help="Keys that encrypt secrets at rest. To change them: add, restart the service, rotate, prune.",
    no_args_is_help=True,
)


@app.command()
def add(config: ConfigOption = None, state: StateOption = None, json: JsonOption = False) -> None:
    """Make a new key. It seals from the next start of the service on; the earlier ones still open."""
    settings = command_context.load_settings(config, state)
    made = encryption.create_key(settings.keys, os.environ)
    output.print_result(f"{made} added to {settings.keys}", {"id": made}, json)
    output.print_note("next: restart the service, all replicas with the same keys; then `aks-flex-rp keys rotate`")


@app.command("list")
def show_all(config: ConfigOption = None, state: StateOption = None, json: JsonOption = False) -> None:
    """List keys by their ids, and how much each has sealed."""
    settings = command_context.load_settings(config, state)
    keys, used = encryption.list_keys(settings.keys, os.environ), asyncio.run(_in_use(settings))
    rows = [(each.id, "seals" if each is keys[0] else "opens", str(used[each.id]), each.source) for each in keys]
    known = {each.id for each in keys}
    rows += [(key, "MISSING", str(count), "-") for key, count in used.items() if key not in known]
    documents = [dict(zip(("id", "use", "sealed", "source"), row, strict=True)) for row in rows]
    output.print_result(
        output.format_table(rows, ("ID", "USE", "SEALED", "FROM")) if rows else "no keys", documents, json
    )


@app.command()
def rotate(config: ConfigOption = None, state: StateOption = None, json: JsonOption = False) -> None:
    """Seal everything anew with the newest key. It may be interrupted, and goes on when it is run again."""
    settings = command_context.load_settings(config, state)
    _refuse_stale_service(settings)
    outcome = asyncio.run(_reseal(settings))
    done = ", ".join(f"{kind}: {count}" for kind, count in outcome.resealed.items() if count) or "nothing to do"
    output.print_result(f"sealed anew, {done}", {"resealed": outcome.resealed, "unopened": outcome.unopened}, json)
    if outcome.unopened:
        raise ConfigError(
            "encryption-keys-incomplete",
            "Some values cannot be opened with any key:\n" + "\n".join(f"  {each}" for each in outcome.unopened),
            "Put back the keys that sealed them as further lines; or add the cluster, or write the secret, anew.",
        )


@app.command()
def prune(config: ConfigOption = None, state: StateOption = None, json: JsonOption = False) -> None:
    """Remove keys that nothing in the database needs any more. Backups made before still need them."""
    settings = command_context.load_settings(config, state)
    _refuse_stale_service(settings)
    used = asyncio.run(_in_use(settings))
    own = [each for each in encryption.list_keys(settings.keys, os.environ)[1:] if each.source == str(settings.keys)]
    gone = {each.id for each in own if not used[each.id]}
    if gone:
        encryption.remove_keys(settings.keys, gone)
    needed = [each.id for each in own if used[each.id]]
    text = f"removed: {', '.join(sorted(gone)) or 'none'}"
    output.print_result(
        f"{text}; still needed: {', '.join(needed)}" if needed else text, {"removed": sorted(gone)}, json
    )
    if needed:
        output.print_note("`aks-flex-rp keys rotate` makes those free, too")


def _refuse_stale_service(settings: ServiceSettings) -> None:
    """One that does not know the newest key cannot open what is sealed with it, and goes on sealing with another."""
    running, keys = instance_lock.find_running(settings.state_dir), encryption.list_keys(settings.keys, os.environ)
    if running and keys and running.keys[:1] != (keys[0].id,):
        raise BusyError(
            "service-restart-required",
            f"The service (process {running.pid}) was started before the newest key was made.",
            "Restart it, and say this again.",
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
