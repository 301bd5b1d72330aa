"""`node …`: what the API does, over HTTP, so that one needs no Azure CLI."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from aks_flex_node.errors import CommandUsageError
from aks_flex_node.rp.cli import node_writes, screen, showing
from aks_flex_node.rp.cli.connecting import ClusterName, Reached, speaking
from aks_flex_node.rp.cli.options import Json, Name

app = typer.Typer(help="Flex nodes of a cluster: describe them, let them join, look at them.", no_args_is_help=True)
Ready = Literal["True", "False", "Unknown"]

app.command("create", help="Describe a new node; its machine need not exist yet.")(node_writes.write)
app.command("update", help="Change a node: what is said, and nothing else. With --file, all of it.")(
    node_writes.write
)


@app.command()
@speaking
def show(
    reached: Reached,
    name: Name,
    cluster: ClusterName = "",
    json: Json = False,
) -> None:
    """Show a node: how it is, and what it is to be."""
    found = reached.client().node(reached.cluster(cluster), name)
    screen.say(showing.node(found), found, json)


@app.command("list")
@speaking
def show_all(
    reached: Reached,
    cluster: ClusterName = "",
    ready: Annotated[
        Ready | None, typer.Option(case_sensitive=False, help="Only those that are, or are not.")
    ] = None,
    version: Annotated[str | None, typer.Option(help="Only those of this Kubernetes version.")] = None,
    label: Annotated[list[str] | None, typer.Option(help="Only those with KEY=VALUE. Repeatable.")] = None,
    join_state: Annotated[str | None, typer.Option(help="Only those that came so far: Created, Joined, …")] = None,
    filter: Annotated[str, typer.Option(help="Any filter of the API: FIELD eq 'VALUE' and …")] = "",
    json: Json = False,
) -> None:
    """List the nodes of a cluster."""
    wanted = [filter] if filter else []
    for field, value in (("ready", ready), ("version", version), ("joinState", join_state)):
        wanted += [_equals(field, value)] if value else []
    wanted += [_equals(f"labels/{key}", value) for key, value in map(_label, label or ())]
    found = list(reached.client().nodes(reached.cluster(cluster), " and ".join(wanted)))
    screen.say(showing.nodes(found), found, json)


def _equals(field: str, value: str) -> str:
    return f"{field} eq '{value.replace(chr(39), chr(39) * 2)}'"


def _label(word: str) -> tuple[str, str]:
    key, equals, value = word.partition("=")
    if not equals or not key:
        raise CommandUsageError("label-malformed", f"{word!r} is no label.", "Write KEY=VALUE.")
    return key, value


@app.command()
@speaking
def delete(
    reached: Reached,
    name: Name,
    cluster: ClusterName = "",
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    json: Json = False,
) -> None:
    """Delete a node: its URL and token end, and a machine that is monitored leaves the cluster by itself."""
    target = reached.cluster(cluster)
    if not yes:
        screen.confirm(f"Delete the node {name} of {target.name}?")
    gone = reached.client().delete_node(target, name)
    screen.say(f"{name} deleted" if gone else f"there is no node {name}", gone or {}, json)
    if gone and not json:
        screen.note("a machine that is not monitored stays a node until `aks-flex-node unbootstrap` is run on it")


@app.command("regenerate-token")
@speaking
def regenerate_token(
    reached: Reached,
    name: Name,
    cluster: ClusterName = "",
    json: Json = False,
) -> None:
    """End a node's token and URL, and make new ones. The URL that is printed is a secret."""
    made = reached.client().regenerate_token(reached.cluster(cluster), name)
    screen.say(made["configUrl"], made, json)
    screen.note(f"good until {made['configUrlExpires']}, for one machine, once; the earlier URL is dead")


@app.command("join-command")
@speaking
def join_command(
    reached: Reached,
    name: Name,
    cluster: ClusterName = "",
    json: Json = False,
) -> None:
    """Print the one line that makes a machine this node, with a fresh URL. It is a secret until it is used."""
    node_writes.say_command(reached.client().regenerate_token(reached.cluster(cluster), name), json)


@app.command()
@speaking
def credentials(
    reached: Reached,
    name: Name,
    cluster: ClusterName = "",
    json: Json = False,
) -> None:
    """Print the credentials that a node is to use, with their secret; that you did is recorded."""
    found = reached.client().credentials(reached.cluster(cluster), name)
    screen.say(showing.pairs({"method": found["method"], **found.get("servicePrincipal", {})}), found, json)
