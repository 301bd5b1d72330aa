"""The command `aks-flex-rp`: parses arguments, prints results, maps errors to exit codes."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone
from importlib import import_module
from itertools import islice, takewhile
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from aks_flex_node import __version__
from aks_flex_node.api.node_changes import OptionError, UnusedOptionsError
from aks_flex_node.errors import CommandUsageError, ConfigError, FlexError
from aks_flex_node.timestamps import format_utc_microseconds, parse_timestamp
from aks_flex_node.version_option import VersionOption
from aks_flex_rp.cli import data_commands, output, serve_commands
from aks_flex_rp.cli.command_context import ServiceOptions, with_service

# name of a group: its module, and its help, which is shown without importing the module
GROUPS = {
    "cluster": ("cluster_commands", "Manage the clusters of the service."),
    "node": ("node_commands", "Manage the flex nodes of a cluster."),
    "pool": ("pool_commands", "Manage pools: one description for many nodes."),
    "rollout": ("rollout_commands", "Roll out revisions of pools in waves."),
    "keys": ("key_commands", "Manage encryption keys. To rotate: add, restart, rotate, prune."),
    "records": ("record_commands", "Review records that others changed in the database."),
    "notifications": ("notification_commands", "List and test webhooks for node events."),
}
DEFAULT_LIMIT = 100
# The errors of options, by option.
ERRORS = {
    "label": "label-invalid",
    "labels": "label-invalid",
    "taints": "taint-invalid",
    "kubelet-settings": "kubelet-setting-invalid",
    "unset": "setting-unknown",
    "window-days": "weekday-invalid",
    "auth-method": "auth-method-invalid",
}
UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def usage_error(error: OptionError) -> CommandUsageError:
    if isinstance(error, UnusedOptionsError):
        text = f"A node whose method is {error.value} {error.reason}."
        return CommandUsageError("auth-options-mismatch", text, error.hint)
    text = f"--{error.option}: {error.value!r} {error.reason}."
    return CommandUsageError(ERRORS.get(error.option, "rollout-option-invalid"), text, error.hint)


class ErrorHandlingGroup(TyperGroup):
    """Prints the errors of all commands and maps them to exit codes."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except FlexError as error:
            failure: FlexError = error
        except OptionError as error:
            failure = usage_error(error)
        except PermissionError as error:
            # The files of a service are readable only for its user.
            failure = ConfigError(
                "permission-denied",
                f"Permission denied: {error.filename or 'a file of the service'}.",
                "Run the command as the user of the service (`sudo -u aks-flex-rp aks-flex-rp … --state DIR`) "
                "or as root.",
            )
        output.print_error(failure)
        raise typer.Exit(failure.exit_code) from failure


class LazyGroup(TyperGroup):
    """A group of commands whose module is imported when one of its commands, or their list, is needed."""

    def __init__(self, *, name: str, **options: Any) -> None:
        self._loaded: dict[str, Any] = {}
        super().__init__(name=name, **options)

    @property  # type: ignore[override] # an attribute of the base class, set by its constructor
    def commands(self) -> dict[str, Any]:
        if not self._loaded:
            group = import_module(f"{__name__}.{GROUPS[str(self.name)][0]}").app
            group.rich_markup_mode = self.rich_markup_mode
            self._loaded = dict(typer.main.get_group(group).commands)
        return self._loaded

    @commands.setter
    def commands(self, commands: dict[str, Any]) -> None:
        pass


app = typer.Typer(
    name="aks-flex-rp",
    cls=ErrorHandlingGroup,
    help="Resource provider of flex nodes: configuration, join tokens, and status of nodes.",
    epilog="To start, run `aks-flex-rp serve`. It prints the next steps. "
    "Exit codes: 0 success, 1 failed, 2 wrong command line, 3 wrong configuration, 4 unsuitable host, 5 service or "
    "Azure failed, 6 cluster failed, 7 locked, 130 interrupted.",
    no_args_is_help=True,
    rich_markup_mode=None,  # plain help does not cut option names
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def root(version: VersionOption = False) -> None:
    """Resource provider of flex nodes: configuration, join tokens, and status of nodes."""


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
    events = service.client.audit(resource=resource, caller=who, what=what)
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


for command in (
    serve_commands.init,
    serve_commands.serve,
    audit,
    data_commands.backup,
    data_commands.restore,
    data_commands.migrate,
):
    app.command()(command)
for group, (_, description) in GROUPS.items():
    app.add_typer(typer.Typer(cls=LazyGroup, help=description, no_args_is_help=True), name=group)


@app.command()
def version(json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Show the version."""
    output.print_result(__version__, {"version": __version__}, json)


@app.command("versions")
def show_versions(json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Show the tested versions of Kubernetes and its components.

    Other versions are allowed, with a warning. A node cannot be newer than its cluster.
    """
    from aks_flex_rp.resource import versions

    rows = versions.tested_table()
    text = output.format_table([tuple(row.values()) for row in rows], [name.upper() for name in rows[0]])
    also = ", ".join(f"{versions.TITLES[name]} {', '.join(older)}" for name, older in versions.ALSO_TESTED.items())
    document = {
        "tested": rows,
        "alsoTested": {name: list(older) for name, older in versions.ALSO_TESTED.items()},
        "maxMinorVersionsBehindCluster": versions.MAX_KUBELET_SKEW,
    }
    output.print_result(f"{text}\n\nUpgrades are tested from {also}.", document, json)


@app.command()
def explain(
    name: Annotated[str | None, typer.Argument(help="An error name, a condition, a reason or a state.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Explain an error or a condition: cause, checks, remedy.

    Without a name, lists all names.
    """
    from aks_flex_node import error_catalog

    text, document = error_catalog.explain(name, "aks_flex_rp", "aks_flex_node")
    output.print_result(output.with_command_name(text), document, json)


def main() -> None:
    app(prog_name=output.command_name())  # also where it runs as `python -m aks_flex_rp`
