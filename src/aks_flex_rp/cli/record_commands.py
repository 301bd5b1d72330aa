"""Commands `records list|show|accept`: rows of the database that were changed without the service."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Annotated

import typer

from aks_flex_node.errors import ConfigError
from aks_flex_rp.cli import output
from aks_flex_rp.cli.command_context import LocalOptions, with_settings

if TYPE_CHECKING:
    from aks_flex_rp.record_review import ReviewedRecord
    from aks_flex_rp.settings import ServiceSettings

app = typer.Typer()


@app.command("list")
@with_settings
def show_all(local: LocalOptions) -> None:
    """List the records that the service refuses.

    A record whose content is authentic, but earlier than what a running service has read, is not shown.
    """
    from aks_flex_rp.store.record_authenticator import escaped

    refused, digest = asyncio.run(_refused(local.settings))
    rows = [(each.kind, each.name, each.state, each.digest, each.cluster) for each in refused]
    documents = [dict(zip(("kind", "name", "state", "digest", "cluster"), row, strict=True)) for row in rows]
    table = output.format_table(
        [tuple(map(escaped, row)) for row in rows], ("KIND", "NAME", "STATE", "DIGEST", "CLUSTER")
    )
    text = f"{table}\ndigest of all: {digest}" if rows else "All records are authentic."
    local.print_result(text, {"records": documents, "digest": digest}, ascii_only=True)


@app.command()
@with_settings
def show(
    local: LocalOptions,
    name: Annotated[
        str,
        typer.Argument(help="The name in `records list`: of a node, a pool or an enrolment, or the ID of a cluster."),
    ],
) -> None:
    """Show the content of a refused record, and its digest.

    Encrypted values are not shown. Accept the content with the digest if it is right.
    """
    from aks_flex_rp.store.record_authenticator import escaped

    refused, _ = asyncio.run(_refused(local.settings))
    found = [each for each in refused if each.is_called(name)]
    if not found:
        raise _not_refused(name)
    documents = [{"kind": each.kind, **each.content, "digest": each.digest} for each in found]
    lines = [f"{field}: {escaped(value)}" for each in documents for field, value in each.items()]
    local.print_result("\n".join(lines), documents, ascii_only=True)


@app.command()
@with_settings
def accept(
    local: LocalOptions,
    name: Annotated[
        str | None,
        typer.Argument(help="The name in `records list`: of a node, a pool or an enrolment, or the ID of a cluster."),
    ] = None,
    digest: Annotated[
        str,
        typer.Option(metavar="DIGEST", help="The digest that `records show` or `list` printed at the review."),
    ] = "",
    every: Annotated[bool, typer.Option("--all", help="Accept all refused records.")] = False,
) -> None:
    """Accept the reviewed content of a refused record.

    The service trusts what you accept. A record that was changed since the review is not accepted.
    """
    if bool(name) == every or not digest:
        raise ConfigError(
            "record-name-required",
            "Name a record, or use --all, and add the --digest of the content that you reviewed.",
            "Run `aks-flex-rp records list`, and `aks-flex-rp records show NAME` for the content.",
        )
    accepted = asyncio.run(_accept(local.settings, "" if every else str(name), digest))
    if not accepted and name:
        raise _not_refused(name)
    local.print_result(f"accepted: {', '.join(accepted) or 'none'}", {"accepted": accepted})


def _not_refused(name: str) -> ConfigError:
    return ConfigError(
        "record-not-refused",
        f"No refused record has the name {name!r}.",
        "Run `aks-flex-rp records list`, and use a name of its output.",
    )


async def _refused(settings: ServiceSettings) -> tuple[list[ReviewedRecord], str]:
    """Returns the refused records, and the digest of all."""
    from aks_flex_rp import raw_database, record_review
    from aks_flex_rp.service import open_sealer

    async with raw_database.open_migrated_database(settings) as database:
        codes = open_sealer(settings).codes
        found = [each async for each in record_review.refused_records(database, codes)]
        return found, record_review.digest_of_all(codes, found)


async def _accept(settings: ServiceSettings, name: str, digest: str) -> list[str]:
    from aks_flex_rp import raw_database, record_review
    from aks_flex_rp.service import open_sealer

    async with raw_database.open_migrated_database(settings) as database:
        return await record_review.accept(database, open_sealer(settings).codes, name, digest, time.time())
