"""Commands `node ...`: the operations of the API over HTTP."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from aks_flex_node.errors import CommandUsageError
from aks_flex_rp.cli import node_write_commands, output
from aks_flex_rp.cli.command_context import ClusterName, JsonOption, NameOption, ServiceOptions, with_service

app = typer.Typer(help="Flex nodes of a cluster: describe them, let them join, look at them.", no_args_is_help=True)
Ready = Literal["True", "False", "Unknown"]

app.command("create", help="Describe a new node; its machine need not exist yet.")(node_write_commands.write_node)
app.command("update", help="Change a node: what is said, and nothing else. With --file, all of it.")(
    node_write_commands.write_node
)


@app.command()
@with_service
def show(
    reached: ServiceOptions,
    name: NameOption,
    cluster: ClusterName = "",
    json: JsonOption = False,
) -> None:
    """Show a node: how it is, and what it is to be."""
    found = reached.client().node(reached.cluster(cluster), name)
    output.print_result(output.format_node(found), found, json)


@app.command("list")
@with_service
def show_all(
    reached: ServiceOptions,
    cluster: ClusterName = "",
    ready: Annotated[
        Ready | None, typer.Option(case_sensitive=False, help="Only those that are, or are not.")
    ] = None,
    version: Annotated[str | None, typer.Option(help="Only those of this Kubernetes version.")] = None,
    label: Annotated[list[str] | None, typer.Option(help="Only those with KEY=VALUE. Repeatable.")] = None,
    join_state: Annotated[str | None, typer.Option(help="Only those that came so far: Created, Joined, …")] = None,
    filter: Annotated[str, typer.Option(help="Any filter of the API: FIELD eq 'VALUE' and …")] = "",
    json: JsonOption = False,
) -> None:
    """List the nodes of a cluster."""
    filters = [filter] if filter else []
    for field, value in (("ready", ready), ("version", version), ("joinState", join_state)):
        filters += [_equals(field, value)] if value else []
    filters += [_equals(f"labels/{key}", value) for key, value in map(_label, label or ())]
    found = list(reached.client().nodes(reached.cluster(cluster), " and ".join(filters)))
    output.print_result(output.format_nodes(found), found, json)


def _equals(field: str, value: str) -> str:
    return f"{field} eq '{value.replace(chr(39), chr(39) * 2)}'"


def _label(word: str) -> tuple[str, str]:
    key, equals, value = word.partition("=")
    if not equals or not key:
        raise CommandUsageError("label-invalid", f"{word!r} is no label.", "Write KEY=VALUE.")
    return key, value


@app.command()
@with_service
def delete(
    reached: ServiceOptions,
    name: NameOption,
    cluster: ClusterName = "",
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    json: JsonOption = False,
) -> None:
    """Delete a node: its URL and token end, and a machine that is monitored leaves the cluster by itself."""
    target = reached.cluster(cluster)
    if not yes:
        output.confirm(f"Delete the node {name} of {target.name}?")
    gone = reached.client().delete_node(target, name)
    output.print_result(f"{name} deleted" if gone else f"there is no node {name}", gone or {}, json)
    if gone and not json:
        output.print_note(
            "a machine that is not monitored stays a node until `aks-flex-node unbootstrap` is run on it"
        )


@app.command("regenerate-token")
@with_service
def regenerate_token(
    reached: ServiceOptions,
    name: NameOption,
    cluster: ClusterName = "",
    json: JsonOption = False,
) -> None:
    """End a node's token and URL, and make new ones. The URL that is printed is a secret."""
    made = reached.client().regenerate_token(reached.cluster(cluster), name)
    output.print_result(made["configUrl"], made, json)
    output.print_note(f"good until {made['configUrlExpires']}, for one machine, once; the earlier URL is dead")


@app.command("join-command")
@with_service
def join_command(
    reached: ServiceOptions,
    name: NameOption,
    cluster: ClusterName = "",
    json: JsonOption = False,
) -> None:
    """Print the one line that makes a machine this node, with a fresh URL. It is a secret until it is used."""
    node_write_commands.print_join_command(reached.client().regenerate_token(reached.cluster(cluster), name), json)


@app.command()
@with_service
def credentials(
    reached: ServiceOptions,
    name: NameOption,
    cluster: ClusterName = "",
    json: JsonOption = False,
) -> None:
    """Print the credentials that a node is to use, with their secret; that you did is recorded."""
    found = reached.client().credentials(reached.cluster(cluster), name)
    output.print_result(
        output.format_pairs({"method": found["method"], **found.get("servicePrincipal", {})}), found, json
    )
