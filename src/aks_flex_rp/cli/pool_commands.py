"""Commands `pool …`: pools of flex nodes, the revisions of their templates, and their application to nodes."""

from __future__ import annotations

import json as json_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from aks_flex_node.api.node_changes import NodeOptions, apply_options
from aks_flex_node.api.node_summary import printable
from aks_flex_node.api.table_rows import pool_row, revision_row
from aks_flex_node.errors import CommandUsageError, ConfigError
from aks_flex_rp.cli import enrolment_commands, output
from aks_flex_rp.cli.command_context import (
    AllowDowngrade,
    ServiceOptions,
    YesOption,
    with_service,
)
from aks_flex_rp.cli.node_write_commands import given_options
from aks_flex_rp.cli.property_files import read_properties
from aks_flex_rp.cli.setting_options import with_template_settings

if TYPE_CHECKING:
    from aks_flex_rp.api_client import Resource

    Document = dict[str, Any]

app = typer.Typer()
app.add_typer(enrolment_commands.app, name="enrolment")
PoolOption = Annotated[str, typer.Option("--name", "-n", metavar="POOL", help="Name of the pool.")]
RevisionOption = Annotated[int | None, typer.Option(metavar="N", min=1, help="Revision of the template.")]


@with_service
@with_template_settings
def write_pool(
    service: ServiceOptions,
    settings: NodeOptions,
    ctx: typer.Context,
    name: PoolOption,
    file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", readable=False, help="The template as JSON or YAML. Options override the file."),
    ] = None,
    description: Annotated[str | None, typer.Option(metavar="TEXT", help="Description of the pool.")] = None,
) -> None:
    pool, creates = service.pools.at(name), ctx.command.name == "create"
    found: Document = {"properties": {}} if creates else pool.get()
    before = found["properties"]
    template = read_properties(file, settings, of_pool=True) if file or creates else before["template"]
    properties: Document = {"template": apply_options(template, settings)}
    shown = before.get("description", "") if description is None else description
    properties |= {"description": shown} if shown else {}
    written = put_pool(pool, name, properties, found.get("etag", ""))
    after = written["properties"]
    done = f"{name} {'created' if creates else 'updated'}, revision {after['revision']}"
    service.print_result("No changes." if written["etag"] == found.get("etag") else done, written)
    if not service.json and after["pendingNodeCount"]:
        nodes = "1 node is" if after["nodeCount"] == 1 else f"{after['nodeCount']} nodes are"
        pending = f"{after['pendingNodeCount']} of {nodes} on another revision."
        apply_command = f"aks-flex-rp pool apply --name {name}{given_options(ctx)}"
        roll_out = f"aks-flex-rp rollout create --pool {name} --name NAME{given_options(ctx)}"
        output.print_note(f"{pending} Try one first: `{apply_command} --node NODE`. Then all in waves: `{roll_out}`.")


app.command("create", help="Create a pool.")(write_pool)
app.command("update", help="Update a pool as a new revision. No node is changed.")(write_pool)


def put_pool(pool: Resource, name: str, properties: Document, etag: str) -> Document:
    from aks_flex_rp.api_client import RequestRefused

    try:
        return pool.put(properties, etag)
    except RequestRefused as refusal:
        if refusal.status != 412:
            raise
    if etag:
        raise ConfigError(
            "pool-conflict",
            f"Another client changed the pool {name} at the same time.",
            "Check the pool with `aks-flex-rp pool show`, and run the command again.",
        )
    raise ConfigError(
        "pool-exists", f"The pool {name} already exists.", "Use `aks-flex-rp pool update` to change it."
    )


@app.command()
@with_service
def show(service: ServiceOptions, name: PoolOption) -> None:
    """Show a pool: its template, revision and number of nodes."""
    found = service.pools.at(name).get()
    properties = found["properties"]
    rows = {
        "name": found["name"],
        "id": found["id"],
        "description": printable(properties.get("description")),
        "revision": str(properties["revision"]),
        "stable": str(properties.get("stableRevision") or ""),
        "barred": ", ".join(map(_barred, properties.get("barredRevisions", ()))),
        "roll-out": properties.get("activeRollout", ""),
        "nodes": f"{properties['nodeCount']} ({properties['pendingNodeCount']} on another revision)",
        "modified by": found["systemData"].get("lastModifiedBy", ""),
    }
    template = json_module.dumps(properties["template"], indent=2)
    service.print_result(f"{output.format_pairs(rows)}\ntemplate\n{template}", found)


def _barred(bar: Document) -> str:
    why = ": ".join(filter(None, (bar.get("rollout"), printable(bar.get("reason")))))
    return f"{bar['revision']} ({why})" if why else str(bar["revision"])


@app.command("list")
@with_service
def show_all(service: ServiceOptions) -> None:
    """List the pools of a cluster."""
    found = list(service.pools.list())
    service.print_result(output.format_rows(list(map(pool_row, found)), "No pools."), found)


@app.command()
@with_service
def delete(
    service: ServiceOptions,
    name: PoolOption,
    yes: YesOption = False,
) -> None:
    """Delete a pool without nodes, with its revisions."""
    from aks_flex_rp.api_client import RequestRefused

    if not yes:
        output.confirm(f"Delete the pool {name} of the cluster {service.target.name}?")
    pool, exists = service.pools.at(name), True
    try:
        pool.get()
    except RequestRefused as refusal:
        exists = refusal.status != 404
    pool.delete()
    service.print_result(f"{name} deleted" if exists else f"pool {name} not found", {})


@app.command()
@with_service
def revisions(service: ServiceOptions, name: PoolOption) -> None:
    """List the revisions of a pool's template, the newest first."""
    found = list(service.pools.at(name, "revisions").list())
    service.print_result(output.format_rows(list(map(revision_row, found))), found)


@app.command()
@with_service
def diff(
    service: ServiceOptions,
    name: PoolOption,
    revision: RevisionOption = None,
) -> None:
    """Show what a revision changed, by default the newest one."""
    pool = service.pools.at(name)
    found = pool.at("revisions", str(revision or pool.get()["properties"]["revision"])).get()
    lines = [
        f"{change['path']}: {_value(change.get('before'))} -> {_value(change.get('after'))}"
        for change in found["properties"]["changes"]
    ]
    service.print_result("\n".join(lines) or "No changes.", found)


def _value(value: object) -> str:
    return "(none)" if value is None else printable(json_module.dumps(value))


@app.command()
@with_service
def apply(
    service: ServiceOptions,
    name: PoolOption,
    revision: RevisionOption = None,
    node: Annotated[
        list[str] | None, typer.Option(metavar="NODE", help="A node of the pool. Repeatable. Default: all.")
    ] = None,
    allow_downgrade: AllowDowngrade = False,
    override_rollout: Annotated[
        bool,
        typer.Option("--override-rollout", help="With one --node: ignore barred revisions and the active roll-out."),
    ] = False,
) -> None:
    """Bring nodes of a pool to a revision of its template.

    Default: all nodes, and the newest revision. Managed nodes fetch their configuration
    by themselves. A node whose configuration would be invalid is not changed.
    """
    if override_rollout and len(node or ()) != 1:
        raise CommandUsageError(
            "override-needs-node",
            "--override-rollout is for exactly one node.",
            "Name it with --node. Nothing was changed.",
        )
    asked = {"revision": revision, "nodeNames": node}
    asked |= {"allowDowngrade": allow_downgrade, "overrideRollout": override_rollout}
    result = service.pools.at(name).act("apply", {key: value for key, value in asked.items() if value})
    applied = len(result["applied"])
    counts = f"{applied} node{'' if applied == 1 else 's'} changed, {len(result['unchanged'])} already there"
    service.print_result(f"{name} revision {result['revision']}: {counts}", result)
    if result["refused"]:
        refused = result["refused"]
        lines = [f"  {each['name']}: {_message(each['error'])}" for each in refused]
        shown = "1 node" if len(refused) == 1 else f"{len(refused)} nodes"
        raise ConfigError(
            "pool-apply-refused",
            f"{shown} of the pool {name} {'was' if len(refused) == 1 else 'were'} not changed:\n" + "\n".join(lines),
            "Correct the template or the nodes, and run the command again.",
        )


def _message(error: Document) -> str:
    details = [f"{each.get('target')}: {each['message']}" for each in error.get("details", ())]
    target = f" ({error['target']})" if error.get("target") else ""
    return printable(" ".join((error["message"] + target, *details)))


@app.command("allow-revision")
@with_service
def allow_revision(
    service: ServiceOptions,
    name: PoolOption,
    revision: Annotated[int, typer.Option(metavar="N", min=1, help="Revision that a roll-out barred.")],
) -> None:
    """Lift the bar of a revision that failed, to try it again."""
    found = service.pools.at(name).act("allowRevision", {"revision": revision})
    service.print_result(f"{name} revision {revision} is allowed", found)
