"""Commands `node …`: operations of the API over HTTP."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from aks_flex_node.api.node_changes import filter_text
from aks_flex_node.api.node_summary import deletion_text, enrolment_note
from aks_flex_rp.cli import node_write_commands, output
from aks_flex_rp.cli.command_context import (
    NameOption,
    ServiceOptions,
    YesOption,
    with_service,
)

if TYPE_CHECKING:
    from aks_flex_rp.api_client import Resource

app = typer.Typer()
Ready = Literal["True", "False", "Unknown"]
ReplaceOption = Annotated[
    bool, typer.Option("--replace", help="Move the node: allow another machine than the current one to join.")
]

app.command("create", help="Create a node. No machine is changed.")(node_write_commands.write_node)
app.command("update", help="Update settings of a node, or all with --file.")(node_write_commands.write_node)


@app.command()
@with_service
def show(
    service: ServiceOptions,
    name: NameOption,
) -> None:
    """Show the status and configuration of a node."""
    found = service.nodes.at(name).get()
    service.print_result(output.format_node(found), found)


@app.command("list")
@with_service
def show_all(
    service: ServiceOptions,
    ready: Annotated[Ready | None, typer.Option(case_sensitive=False, help="Filter by the Ready condition.")] = None,
    version: Annotated[str | None, typer.Option(metavar="VERSION", help="Filter by Kubernetes version.")] = None,
    label: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="Filter by label KEY=VALUE. Repeatable.")
    ] = None,
    join_state: Annotated[
        str | None, typer.Option(metavar="STATE", help="Filter by join state: Created, Joined, …")
    ] = None,
    pool: Annotated[str | None, typer.Option(metavar="POOL", help="Filter by pool.")] = None,
    filter: Annotated[
        str, typer.Option(metavar="EXPRESSION", help="Filter expression of the API: FIELD eq 'VALUE' and …")
    ] = "",
) -> None:
    """List the nodes of a cluster."""
    values = {"ready": ready, "version": version, "joinState": join_state, "poolName": pool or None}
    own = filter_text(values, label or ())
    found = list(service.nodes.list(" and ".join(each for each in (filter, own) if each)))
    in_pools = not service.json and any(map(output.pool_of, found))
    revisions = pool_revisions(service.pools) if in_pools or (pool and not found) else {}
    service.print_result(output.format_nodes(found, revisions=revisions), found)
    if pool and not found and revisions is not None and pool.lower() not in revisions:
        output.print_note(
            f"The cluster {service.target.name} has no pool {pool}. List its pools with `aks-flex-rp pool list`."
        )


def pool_revisions(pools: Resource) -> dict[str, int] | None:
    """Returns the newest revision of each pool, or None if the caller may not read pools."""
    from aks_flex_rp.api_client import RequestRefused

    try:
        return {each["name"].lower(): each["properties"]["revision"] for each in pools.list()}
    except RequestRefused as refusal:
        if refusal.status not in {403, 404}:
            raise
        return None


@app.command()
@with_service
def delete(
    service: ServiceOptions,
    name: NameOption,
    yes: YesOption = False,
) -> None:
    """Delete a node.

    Revokes its configuration URL and token. The daemon of a managed node unbootstraps the machine, unless its
    policy forbids it.
    """
    if not yes:
        output.confirm(f"Delete the node {name} of the cluster {service.target.name}?")
    node = service.nodes.at(name)
    found = read_node(node)
    deleted = node.delete()
    service.print_result(f"{name} deleted" if deleted else f"node {name} not found", deleted or {})
    if deleted and found and not service.json and (text := deletion_text(name, found)):
        output.print_note(text)
    if deleted and not service.json:
        for each in deleted.get("azureResources", ()):
            output.print_note(f"Removed by the agent. If it remains, run: {each['command']}")


def read_node(node: Resource) -> dict[str, Any] | None:
    """Reads a node that is to be deleted, which tells what happens to its machine. Returns None if it does not exist,
    or if the caller may not read it.
    """
    from aks_flex_rp.api_client import RequestRefused

    try:
        return node.get()
    except RequestRefused as refusal:
        if refusal.status not in {403, 404}:
            raise
        return None


def _new_url(service: ServiceOptions, name: str, replace: bool) -> dict[str, Any]:
    """Creates a new configuration URL. With `replace`, another machine than the current one may use it."""
    return service.nodes.at(name).act("regenerateToken", {"replaceMachine": True} if replace else None)


@app.command("regenerate-token")
@with_service
def regenerate_token(
    service: ServiceOptions,
    name: NameOption,
    replace: ReplaceOption = False,
) -> None:
    """Create a new token and configuration URL for a node.

    Revokes the previous ones. The printed URL is a secret.
    """
    created = _new_url(service, name, replace)
    service.print_result(created["configUrl"], created)
    node_write_commands.print_machine_note(name, created, replace=replace)
    output.print_note(f"Valid until {created['configUrlExpires']}, for one use. The previous URL is revoked.")


@app.command("revoke-key")
@with_service
def revoke_key(service: ServiceOptions, name: NameOption) -> None:
    """Revoke the key of a node, with its configuration URL.

    The Azure identity of the node is refused, too. The node stays in the cluster. Its machine reports again after it
    has joined with a new join command.
    """
    revoked = service.nodes.at(name).act("revokeKey")
    shown = f"Key {revoked['fingerprint']} of {name} revoked."
    if "fingerprint" not in revoked:
        shown = f"{name} has no key. Its Azure identity {revoked['identity']} is refused from now on."
    service.print_result(shown, revoked)
    if note := enrolment_note(revoked):
        output.print_note(note)
    output.print_note(
        f"To let the machine be {name} again, run the join command of `aks-flex-rp node join-command --name {name}` "
        "on it."
    )


@app.command()
@with_service
def release(service: ServiceOptions, name: NameOption) -> None:
    """Release an enrolled node for re-imaging.

    The same machine may enrol again as this node with a new disk.
    """
    released = service.nodes.at(name).act("release")
    service.print_result(f"{name} released", released)
    output.print_note(f"Run the enrolment's line on the machine when it has its new disk. It is {name} again.")


@app.command("join-command")
@with_service
def join_command(
    service: ServiceOptions,
    name: NameOption,
    replace: ReplaceOption = False,
) -> None:
    """Print the join command of a node, with a new URL.

    The command is a secret until it is used. A previous join command is revoked.
    """
    created = _new_url(service, name, replace)
    node_write_commands.print_join_command(service, created)
    node_write_commands.print_machine_note(name, created, replace=replace)


@app.command()
@with_service
def credentials(
    service: ServiceOptions,
    name: NameOption,
) -> None:
    """Print the Azure credentials of a node, with the secret.

    The access is recorded in the audit log.
    """
    found = service.nodes.at(name).act("listCredentials")
    service.print_result(output.format_pairs({"method": found["method"], **found.get("servicePrincipal", {})}), found)
