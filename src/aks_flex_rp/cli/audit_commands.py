"""Command `audit`: lists audit events."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone
from itertools import islice, takewhile
from typing import Annotated

import typer

from aks_flex_node.errors import CommandUsageError
from aks_flex_node.timestamps import format_utc_microseconds, parse_timestamp
from aks_flex_rp.cli import output
from aks_flex_rp.cli.command_context import ServiceOptions, with_service

DEFAULT_LIMIT = 100
UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


@with_service
def audit(
    service: ServiceOptions,
    resource: Annotated[
        str, typer.Option(metavar="ID", help="Resource ID of a cluster or node. Includes its children.")
    ] = "",
    node: Annotated[str, typer.Option(metavar="NAME", help="Name of a node of --cluster.")] = "",
    who: Annotated[str, typer.Option(metavar="NAME", help="Filter by caller.")] = "",
    what: Annotated[
        str, typer.Option(metavar="EVENT", help="Filter by event: create, update, delete, regenerateToken, …")
    ] = "",
    since: Annotated[
        str, typer.Option(metavar="TIME", help="Only newer events: 30m, 12h, 7d, or a time like 2026-05-01T12:00Z.")
    ] = "",
    limit: Annotated[
        int | None,
        typer.Option(min=1, help=f"Maximum number of events. Default: {DEFAULT_LIMIT}; with --since: all."),
    ] = None,
) -> None:
    """List audit events, newest first."""
    if node or (service.cluster and not resource):
        target = service.target
        resource = target.node(node) if node else str(target)
    earliest = parse_since(since, datetime.now(timezone.utc)) if since else ""
    events = service.client().audit(resource=resource, caller=who, what=what)
    recent = takewhile(lambda event: event["at"] >= earliest, events)
    found = list(islice(recent, limit or (None if since else DEFAULT_LIMIT)))
    service.print_result(output.format_events(found), found)


def parse_since(text: str, now: datetime) -> str:
    """Returns the start time in the format of the service, which sorts chronologically."""
    found = re.fullmatch(r"(\d{1,6})([smhdw])", text.strip())
    if found:
        when = now - timedelta(**{UNITS[found[2]]: int(found[1])})
    else:
        try:
            when = parse_timestamp(text.strip())
        except ValueError:
            hint = "Use a duration (30m, 12h, 7d) or a time (2026-05-01T12:00Z)."
            raise CommandUsageError("timestamp-invalid", f"{text!r} is not a valid time.", hint) from None
    if when.tzinfo is None:
        when = when.replace(tzinfo=timezone.utc)
    return format_utc_microseconds(when.timestamp())
