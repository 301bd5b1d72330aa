"""Command `audit`."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone
from itertools import islice, takewhile
from typing import Annotated

import typer

from aks_flex_node.errors import CommandUsageError
from aks_flex_node.timestamps import format_utc_microseconds, parse_timestamp
from aks_flex_rp.cli import output
from aks_flex_rp.cli.command_context import ClusterName, JsonOption, ServiceOptions, with_service

DEFAULT_LIMIT = 100
UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def attach(app: typer.Typer) -> None:
    app.command()(audit)


@with_service
def audit(
    reached: ServiceOptions,
    cluster: ClusterName = "",
    resource: Annotated[str, typer.Option(help="A cluster or a node by its id, and all below it.")] = "",
    node: Annotated[str, typer.Option(help="A node of --cluster, by its name.")] = "",
    who: Annotated[str, typer.Option(help="By this caller.")] = "",
    what: Annotated[str, typer.Option(help="Of this kind: create, update, delete, regenerateToken, …")] = "",
    since: Annotated[
        str, typer.Option(help="Not older than 30m, 12h, 7d, or a moment such as 2026-05-01T12:00Z.")
    ] = "",
    limit: Annotated[
        int | None, typer.Option(min=1, help=f"At most so many; {DEFAULT_LIMIT}, or with --since all of them.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Show what was done, the newest first."""
    if node or (cluster and not resource):
        target = reached.cluster(cluster)
        resource = target.node(node) if node else str(target)
    earliest = parse_since(since, datetime.now(timezone.utc)) if since else ""
    events = reached.client().audit(resource=resource, caller=who, what=what)
    recent = takewhile(lambda event: event["at"] >= earliest, events)
    found = list(islice(recent, limit or (None if since else DEFAULT_LIMIT)))
    output.print_result(output.format_events(found), found, json)


def parse_since(text: str, now: datetime) -> str:
    """In the form of the service's own, which sorts as time goes."""
    found = re.fullmatch(r"(\d{1,6})([smhdw])", text.strip())
    if found:
        when = now - timedelta(**{UNITS[found[2]]: int(found[1])})
    else:
        try:
            when = parse_timestamp(text.strip())
        except ValueError:
            hint = "Write 30m, 12h, 7d, or a moment such as 2026-05-01T12:00Z."
            raise CommandUsageError("timestamp-invalid", f"{text!r} is no time.", hint) from None
    if when.tzinfo is None:
        when = when.replace(tzinfo=timezone.utc)
    return format_utc_microseconds(when.timestamp())
