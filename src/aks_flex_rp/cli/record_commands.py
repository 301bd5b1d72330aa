"""Commands `records list|accept`: rows of the database that were changed without the service."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Annotated

import typer

from aks_flex_node.errors import ConfigError
from aks_flex_rp.cli import command_context, output
from aks_flex_rp.cli.command_context import ConfigOption, JsonOption, StateOption

if TYPE_CHECKING:
    from aks_flex_rp.record_review import ReviewedRecord
    from aks_flex_rp.settings import ServiceSettings

app = typer.Typer(
    help="Review records that others changed in the database.",
    no_args_is_help=True,
)


@app.command("list")
def show_all(config: ConfigOption = None, state: StateOption = None, json: JsonOption = False) -> None:
    """List the records that the service refuses.

    A record whose content is authentic, but earlier than what a running service has read, is not shown.
    """
    settings = command_context.load_settings(config, state)
    refused = asyncio.run(_refused(settings))
    rows = [(each.kind, each.name, each.state, each.cluster) for each in refused]
    documents = [dict(zip(("kind", "name", "state", "cluster"), row, strict=True)) for row in rows]
    text = output.format_table(rows, ("KIND", "NAME", "STATE", "CLUSTER")) if rows else "All records are authentic."
    output.print_result(text, documents, json)


@app.command()
def accept(
    name: Annotated[
        str | None, typer.Argument(help="The name in `records list`: of a node, or the ID of a cluster.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Accept all refused records.")] = False,
    config: ConfigOption = None,
    state: StateOption = None,
    json: JsonOption = False,
) -> None:
    """Accept the present content of a refused record.

    Check the record first: the service trusts what you accept.
    """
    settings = command_context.load_settings(config, state)
    if bool(name) == every:
        raise ConfigError("record-name-required", "Name a record, or use --all.", "Run `aks-flex-rp records list`.")
    accepted = asyncio.run(_accept(settings, "" if every else str(name)))
    if not accepted and name:
        raise ConfigError(
            "record-not-refused",
            f"No refused record has the name {name!r}.",
            "Run `aks-flex-rp records list`, and use a name of its output.",
        )
    output.print_result(f"accepted: {', '.join(accepted) or 'none'}", {"accepted": accepted}, json)


async def _refused(settings: ServiceSettings) -> list[ReviewedRecord]:
    from aks_flex_rp import raw_database, record_review
    from aks_flex_rp.service import open_sealer

    async with raw_database.open_migrated_database(settings) as database:
        return [each async for each in record_review.refused_records(database, open_sealer(settings).codes)]


async def _accept(settings: ServiceSettings, name: str) -> list[str]:
    from aks_flex_rp import raw_database, record_review
    from aks_flex_rp.service import open_sealer

    async with raw_database.open_migrated_database(settings) as database:
        return await record_review.accept(database, open_sealer(settings).codes, name, time.time())
