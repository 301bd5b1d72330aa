"""Commands `node create` and `node update`: build the request body from options and write it with If-Match."""

from __future__ import annotations

import shlex
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from aks_flex_node.api import node_changes
from aks_flex_node.api.node_changes import NodeOptions, apply_options
from aks_flex_node.api.node_summary import EXEC_WARNING, joins_by_exec, machine_note, not_applied_text
from aks_flex_node.api.node_summary import join_command as format_join_command
from aks_flex_node.errors import CommandUsageError, ConfigError
from aks_flex_rp.cli import output
from aks_flex_rp.cli.command_context import (
    NameOption,
    ServiceOptions,
    read_secret,
    with_service,
)
from aks_flex_rp.cli.property_files import read_properties
from aks_flex_rp.cli.setting_options import with_node_settings

if TYPE_CHECKING:
    from aks_flex_rp.api_client import Resource

    Document = dict[str, Any]

REPEATED_OPTIONS = [each.name for each in fields(ServiceOptions) if each.name != "json"]


@with_service
@with_node_settings
def write_node(
    service: ServiceOptions,
    settings: NodeOptions,
    ctx: typer.Context,
    name: NameOption,
    file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", readable=False, help="All properties as JSON or YAML. Options override the file."
        ),
    ] = None,
    allow_downgrade: Annotated[
        bool, typer.Option("--allow-downgrade", help="Allow older versions than the node has.")
    ] = False,
    override_rollout: Annotated[
        bool,
        typer.Option("--override-rollout", help="Ignore barred revisions, and limits of an active roll-out."),
    ] = False,
    join_command: Annotated[
        bool, typer.Option("--join-command", help="Create and print only the join command.")
    ] = False,
) -> None:
    options = settings
    if "client_secret" in options:
        options = NodeOptions({**options, "client_secret": _secret(options["client_secret"], service.token_file)})
    creates = ctx.command.name == "create"
    body = read_properties(file, options) if file or creates else None
    flags = {"configUrl": join_command, "allowDowngrade": allow_downgrade, "overrideRollout": override_rollout}
    query = {key: "true" for key, is_set in flags.items() if is_set}
    node = service.nodes.at(name)
    if creates:
        written, done = create_node(node, name, apply_options(body or {}, options), query), "created"
    else:
        written, changed = update_node(node, body, options, query)
        done = "updated" if changed else "unchanged"
    _print_written(service, ctx, written, done, join_command=join_command)


def create_node(node: Resource, name: str, properties: Document, query: dict[str, str]) -> Document:
    """Creates a node. Fails if it exists."""
    from aks_flex_rp.api_client import RequestRefused

    try:
        return node.put(properties, "", query)
    except RequestRefused as refusal:
        if refusal.status != 412:
            raise
        raise ConfigError(
            "node-exists", f"The node {name} already exists.", "Use `aks-flex-rp node update` to change it."
        ) from None


def update_node(
    node: Resource, body: Document | None, options: NodeOptions, query: dict[str, str]
) -> tuple[Document, bool]:
    """Reads, changes and writes a node, and returns it and whether it was written. Retries if another client changed
    unrelated settings meanwhile.
    """
    from aks_flex_rp.api_client import RequestRefused

    found = node.get()
    changes = options if body is not None else node_changes.keep_managed(found, options)

    def put(properties: Document, etag: str, is_last: bool) -> Document | None:
        try:
            return node.put(properties, etag, query)
        except RequestRefused as refusal:
            if refusal.status != 412 or is_last:
                raise
        return None

    try:
        written = node_changes.write_changed(
            found,
            node.get,
            put,
            lambda properties: apply_options(properties if body is None else body, changes),
            replaces=body is not None,
            always=not query.keys().isdisjoint({"configUrl", "allowDowngrade"}),
        )
    except node_changes.ConflictingChangesError as error:
        raise ConfigError(
            "node-conflict",
            f"Another client changed the node {found['name']} at the same time: {error}.",
            "Check the node with `aks-flex-rp node show`, and run the command again.",
        ) from None
    if written is not None and changes is not options:
        output.print_note(node_changes.stays_managed_text(found))
    return written or found, written is not None


def _print_written(
    service: ServiceOptions, ctx: typer.Context, written: Document, done: str, *, join_command: bool
) -> None:
    properties = written["properties"]
    name, version = written["name"], properties["configVersion"]
    for warning in output.version_warnings(properties["status"]):
        output.print_note(f"warning: {warning}")
    if joins_by_exec(properties):
        output.print_note(f"warning: {EXEC_WARNING}")
    if join_command:
        print_join_command(service, properties)
        return
    service.print_result("No changes." if done == "unchanged" else f"{name} {done}, configVersion {version}", written)
    if service.json or done == "unchanged":
        return
    command = f"`aks-flex-rp node join-command --name {name}{given_options(ctx)}`"
    if done == "updated" and (text := not_applied_text(name, written)):
        output.print_note(f"{text} To apply it, run {command}, and run the command that it prints on the machine.")
    elif properties["status"].get("joinState") != "Joined":
        output.print_note(f"To join, run {command}, and run the command that it prints on the machine.")


def given_options(ctx: typer.Context) -> str:
    """Returns the options for cluster and service as given on the command line, for the next command."""
    sources = {name: ctx.get_parameter_source(name) for name in REPEATED_OPTIONS}
    given = [name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"]
    return "".join(f" --{name.replace('_', '-')} {shlex.quote(str(ctx.params[name]))}" for name in given)


def print_join_command(service: ServiceOptions, made: Document) -> None:
    """Prints the join command of a new configuration URL."""
    line = format_join_command(str(made["configUrl"]))
    document = {"command": line, "configUrl": made["configUrl"], "expires": made["configUrlExpires"]}
    service.print_result(line, document | ({"machine": made["machine"]} if "machine" in made else {}))
    output.print_note(f"Run it as root on the machine. Valid until {made['configUrlExpires']}, for one use.")


def print_machine_note(name: str, made: Document, *, replace: bool) -> None:
    """Warns that the node lives on a machine, and that the URL works only there or moves the node."""
    if note := machine_note(name, made, replace=replace):
        output.print_note(note)


def _secret(file: str, token_file: str | None) -> str:
    if file == "-" == token_file:
        raise CommandUsageError(
            "stdin-already-used",
            "The token and the secret cannot both be read from standard input.",
            "Use a file for one of them.",
        )
    secret = read_secret(file)
    if not secret:
        raise ConfigError("secret-empty", f"{file} does not contain a secret.", "Check `--client-secret-file`.")
    return secret
