"""Output of commands as text tables or JSON."""

from __future__ import annotations

import json
import os
import re
import sys
import textwrap
import time
from datetime import timezone
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import typer

from aks_flex_node.api.node_summary import (
    attention,
    conditions_of,
    format_machine,
    printable,
    ready_condition,
    time_ago,
    unhealthy_conditions,
)
from aks_flex_node.errors import CommandUsageError
from aks_flex_node.timestamps import parse_timestamp

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from aks_flex_node.errors import FlexError

    Document = dict[str, Any]

PROGRAM = "aks-flex-rp"
COMMAND_VARIABLE = "AKS_FLEX_RP_COMMAND"  # how a wrapper, such as `aks-flex-lab rp`, is called


def command_name() -> str:
    """Returns the command that runs this program, for the usage line and for printed commands."""
    return os.environ.get(COMMAND_VARIABLE) or PROGRAM


def with_command_name(text: str) -> str:
    """Replaces this program's name in commands of a text, which are in backticks."""
    return text.replace(f"`{PROGRAM} ", f"`{command_name()} ")


def print_result(text: str, document: Any = None, as_json: bool = False, *, ascii_only: bool = False) -> None:
    """Prints the result on standard output, as text or JSON. With `ascii_only`, JSON escapes all other characters."""
    typer.echo(json.dumps(document, indent=2, ensure_ascii=ascii_only) if as_json else text)


def print_note(text: str) -> None:
    """Prints a note on standard error."""
    typer.echo(with_command_name(text), err=True)


def confirm(question: str) -> None:
    """Asks for confirmation on a terminal. Raises CommandUsageError if there is no terminal."""
    if not sys.stdin.isatty():
        raise CommandUsageError(
            "confirmation-required",
            f"This command requires confirmation: {question}",
            "Run it in a terminal, or add `--yes` in scripts. Nothing was changed.",
        )
    typer.confirm(question, abort=True, err=True)


def print_warning(text: str) -> None:
    """Prints a warning on standard error."""
    yellow, plain = ("\x1b[33m", "\x1b[0m") if sys.stderr.isatty() else ("", "")
    typer.echo(f"{yellow}warning{plain}: {text}", err=True)


def format_table(rows: Sequence[Sequence[str]], head: Sequence[str], empty: str = "") -> str:
    """Formats rows as aligned columns with a header. Returns `empty` if it is given and there are no rows."""
    if empty and not rows:
        return empty
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in (head, *rows)
    ]
    return "\n".join(lines)


def format_rows(rows: Sequence[Document], empty: str = "") -> str:
    """Formats rows as a table. The column NodeName has the header NODE NAME."""
    head = [title(column) for row in rows[:1] for column in row]
    return format_table([[*map(_cell, row.values())] for row in rows], head, empty)


def title(column: str) -> str:
    return re.sub("(?<=[a-z])(?=[A-Z])", " ", column).upper()


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    text = str(value) or "-"
    return format_time(text) if re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:.]+Z", text) else text


def format_time(moment: str | None) -> str:
    """Formats a timestamp of the API for a table."""
    return moment[:19].replace("T", " ") if moment else "-"


def print_error(error: FlexError) -> None:
    """Prints message, hint and name of an error on standard error."""
    from aks_flex_node.error_catalog import has_entry

    red, plain = ("\x1b[31m", "\x1b[0m") if sys.stderr.isatty() else ("", "")
    lines = [f"{red}error{plain}: {error.message}", *([f"  {error.hint}"] if error.hint else [])]
    more = f": run `{PROGRAM} explain {error.name}` for causes and remedies"
    lines.append(f"  {error.name}{more if has_entry(error.name, 'aks_flex_rp', 'aks_flex_node') else ''}")
    typer.echo(with_command_name("\n".join(lines)), err=True)


MAX_CAUSE = 100  # characters of a cause in a table; `node show` prints all of it
FACTS = "facts"  # what a machine says about itself when it enrols
MAX_FACT = 36  # characters of a fact in a table: a system UUID is whole
EVENT_COLUMNS = ("TIME", "CALLER", "EVENT", "OUTCOME", "NODE", "SOURCE", "DETAIL")


def format_nodes(
    found: Sequence[Document], now: float | None = None, revisions: Mapping[str, int] | None = None
) -> str:
    """Formats nodes as a table. With nodes of pools, it has a column for them.

    `revisions` are the newest ones of pools.
    """
    pools = (revisions or {}) if any(map(pool_of, found)) else None
    return format_rows([_row(each, time.time() if now is None else now, pools) for each in found], "No nodes.")


def pool_of(resource: Document) -> str:
    return str(resource["properties"].get("poolName", ""))


def _pool_cell(resource: Document, revisions: Mapping[str, int]) -> str:
    """Formats pool and revision of a node, with the newest revision if it is known: `edge 2/3`."""
    pool, revision = pool_of(resource), resource["properties"].get("poolRevision")
    if not pool:
        return ""
    newest = revisions.get(pool.lower())
    return f"{pool} {revision}/{newest}" if newest else f"{pool} r{revision}"


def _row(resource: Document, now: float, pools: Mapping[str, int] | None) -> Document:
    properties = resource["properties"]
    status = properties.get("status", {})
    cause = printable(status.get("cause")) or attention(properties)
    return {
        "Name": resource["name"],
        "Ready": ready_condition(status).get("status", "Unknown"),
        "Join": status.get("joinState", ""),
        "Version": status.get("kubeletVersion") or properties.get("versions", {}).get("kubernetes", ""),
        "LastSeen": time_ago(properties.get("lastSeen"), now),
        **({} if pools is None else {"Pool": _pool_cell(resource, pools)}),
        "Cause": textwrap.shorten(cause, MAX_CAUSE, placeholder=" …"),
    }


def format_node(resource: Document, now: float | None = None) -> str:
    """Formats the status and configuration of one node."""
    properties = resource["properties"]
    status = properties.get("status", {})
    desired_version = properties.get("config", {}).get("kubernetes", {}).get("version", "-")
    running = f" (running {status['kubeletVersion']})" if status.get("kubeletVersion") else ""
    applied, ready = status.get("appliedConfigVersion"), ready_condition(status)
    cause = printable(ready.get("message") or ready.get("reason"))
    rows = {
        "name": resource["name"],
        "id": resource["id"],
        "ready": f"{ready.get('status', 'Unknown')}{f' ({cause})' if cause else ''}",
        "join": ": ".join(filter(None, (status.get("joinState", "-"), printable(status.get("joinFailure"))))),
        "machine": format_machine(status["machine"]) if status.get("machine") else "",
        "machine ID": status.get("machine", {}).get("id", ""),
        "last seen": time_ago(properties.get("lastSeen"), time.time() if now is None else now),
        "configVersion": properties["configVersion"] + (f" (applied: {applied})" if applied else ""),
        "kubernetes": desired_version
        + (f" (running {running})" if (running := status.get("kubeletVersion")) else ""),
        "pool": f"{pool_of(resource)} (revision {properties['poolRevision']})" if pool_of(resource) else "",
        "agent": status.get("agentVersion", ""),
        # as `aks-flex-node node-key show` prints it on the machine
        "node key": f"{key['fingerprint']} ({key['state'].lower()})" if (key := status.get("nodeKey")) else "",
        "modified by": resource.get("systemData", {}).get("lastModifiedBy", ""),
    }
    lines = [*(("setting", each) for each in _settings(properties)), *_condition_lines(status)]
    return "\n".join([format_pairs(rows), *(f"{name:<{_width(rows)}}{text}" for name, text in lines)])


def _settings(properties: Document) -> Iterator[str]:
    """Yields each effective setting with its value and origin: `nodeConfig.maxPods 60 (pool)`."""
    from aks_flex_node.api.node_changes import writable_properties
    from aks_flex_rp.arm.errors import json_path
    from aks_flex_rp.resource.effective import leaves

    origins, written = properties.get("origins", {}), writable_properties({"properties": properties})
    for path, value in sorted(leaves(properties.get("effective", written)), key=itemgetter(0)):
        shown, origin = json_path(*path), origins.get(json_path(*path))
        text = printable(value) if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        yield f"{shown} {text}{f' ({origin})' if origin else ''}"


def _condition_lines(status: Document) -> list[tuple[str, str]]:
    """Formats ConfigApplied and the conditions that need attention. Ready has a line of its own."""
    unhealthy = unhealthy_conditions(status)
    applied = [each for each in conditions_of(status) if each.type == "ConfigApplied" and each not in unhealthy]
    return [
        ("condition", f"{each.type} is {each.status}" + (f" ({each.cause})" if each.cause else ""))
        for each in applied + unhealthy
    ]


def version_warnings(status: Document) -> list[str]:
    """Returns the messages about versions that are not in the table of tested versions."""
    found = [each for each in status.get("conditions", ()) if each["type"] == "VersionsTested"]
    return [each["message"] for each in found if each["status"] == "False"]


def format_pairs(pairs: Mapping[str, str]) -> str:
    """Formats pairs one per line, without empty values."""
    width = _width(pairs)
    return "\n".join(f"{name:<{width}}{value}" for name, value in pairs.items() if value)


def _width(pairs: Mapping[str, str]) -> int:
    return max(map(len, pairs)) + 2


def format_events(found: Sequence[Document]) -> str:
    """Formats audit events as a table."""
    return format_table([_event(each) for each in found], EVENT_COLUMNS, "No events.")


def _event(event: Document) -> tuple[str, ...]:
    at = parse_timestamp(event["at"]).astimezone(timezone.utc)
    last = event["resource"].rpartition("/")[2]
    detail = ", ".join(f"{name}={_short(name, value)}" for name, value in event["detail"].items() if value)
    columns = (event["who"], event["what"], event["outcome"], last, event["source"] or "-", detail)
    return (at.strftime("%Y-%m-%d %H:%M:%S"), *map(printable, columns))


def _short(name: str, value: object) -> str:
    if name == FACTS and isinstance(value, dict):
        return " ".join(f"{fact}:{_fact(each)}" for fact, each in value.items() if each)
    if isinstance(value, dict):
        return "+".join(map(str, value)) or "none"
    return str(value)


def _fact(value: object) -> str:
    text = "+".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    return text if len(text) <= MAX_FACT else f"{text[: MAX_FACT - 1]}…"
