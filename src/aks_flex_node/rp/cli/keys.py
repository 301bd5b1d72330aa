"""`keys add|list|rotate|prune`: the keys that encrypt what is secret in the database."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

import typer

from aks_flex_node.errors import BusyError, ConfigError
from aks_flex_node.rp import keyrings, presence
from aks_flex_node.rp.cli import options, screen
from aks_flex_node.rp.cli.options import Config, Json, State

if TYPE_CHECKING:
    from collections import Counter

    from aks_flex_node.rp.rekeying import Outcome
    from aks_flex_node.rp.settings import ServiceSettings

app = typer.Typer(
    help="Keys that encrypt secrets at rest. To change them: add, restart the service, rotate, prune.",
    no_args_is_help=True,
)


@app.command()
def add(config: Config = None, state: State = None, json: Json = False) -> None:
    """Make a new key. It seals from the next start of the service on; the earlier ones still open."""
    settings = options.load(config, state)
    made = keyrings.add(settings.keys, os.environ)
    screen.say(f"{made} added to {settings.keys}", {"id": made}, json)
    screen.note("next: restart the service, all replicas with the same keys; then `aks-flex-rp keys rotate`")


@app.command("list")
def show_all(config: Config = None, state: State = None, json: Json = False) -> None:
    """List keys by their ids, and how much each has sealed."""
    settings = options.load(config, state)
    keys, used = keyrings.read(settings.keys, os.environ), asyncio.run(_in_use(settings))
    rows = [(each.id, "seals" if each is keys[0] else "opens", str(used[each.id]), each.source) for each in keys]
    known = {each.id for each in keys}
    rows += [(key, "MISSING", str(count), "-") for key, count in used.items() if key not in known]
    documents = [dict(zip(("id", "use", "sealed", "source"), row, strict=True)) for row in rows]
    screen.say(screen.table(rows, ("ID", "USE", "SEALED", "FROM")) if rows else "no keys", documents, json)


@app.command()
def rotate(config: Config = None, state: State = None, json: Json = False) -> None:
    """Seal everything anew with the newest key. It may be interrupted, and goes on when it is run again."""
    settings = options.load(config, state)
    _refuse_stale_service(settings)
    outcome = asyncio.run(_reseal(settings))
    done = ", ".join(f"{kind}: {count}" for kind, count in outcome.resealed.items() if count) or "nothing to do"
    screen.say(f"sealed anew, {done}", {"resealed": outcome.resealed, "unopened": outcome.unopened}, json)
    if outcome.unopened:
        raise ConfigError(
            "keys-incomplete",
            "Some values cannot be opened with any key:\n" + "\n".join(f"  {each}" for each in outcome.unopened),
            "Put back the keys that sealed them as further lines; or add the cluster, or write the secret, anew.",
        )


@app.command()
def prune(config: Config = None, state: State = None, json: Json = False) -> None:
    """Remove keys that nothing in the database needs any more. Backups made before still need them."""
    settings = options.load(config, state)
    _refuse_stale_service(settings)
    used = asyncio.run(_in_use(settings))
    own = [each for each in keyrings.read(settings.keys, os.environ)[1:] if each.source == str(settings.keys)]
    gone = {each.id for each in own if not used[each.id]}
    if gone:
        keyrings.drop(settings.keys, gone)
    needed = [each.id for each in own if used[each.id]]
    text = f"removed: {', '.join(sorted(gone)) or 'none'}"
    screen.say(f"{text}; still needed: {', '.join(needed)}" if needed else text, {"removed": sorted(gone)}, json)
    if needed:
        screen.note("`aks-flex-rp keys rotate` makes those free, too")


def _refuse_stale_service(settings: ServiceSettings) -> None:
    """One that does not know the newest key cannot open what is sealed with it, and goes on sealing with another."""
    running, keys = presence.look(settings.state_dir), keyrings.read(settings.keys, os.environ)
    if running and keys and running.keys[:1] != (keys[0].id,):
        raise BusyError(
            "service-has-old-keys",
            f"The service (process {running.pid}) was started before the newest key was made.",
            "Restart it, and say this again.",
        )


async def _in_use(settings: ServiceSettings) -> Counter[str]:
    from aks_flex_node.rp import databases, rekeying

    async with databases.opened(settings) as database:
        return await rekeying.in_use(database)


async def _reseal(settings: ServiceSettings) -> Outcome:
    from aks_flex_node.rp import databases, rekeying
    from aks_flex_node.rp.service import open_sealer

    async with databases.opened(settings) as database:
        return await rekeying.reseal(database, open_sealer(settings))
