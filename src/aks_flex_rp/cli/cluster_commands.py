"""Commands `cluster add|list|show|check|remove`. They write to the service's store."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from aks_flex_node.errors import ConfigError
from aks_flex_rp.arm.ids import parse_cluster_id
from aks_flex_rp.cli import command_context, output
from aks_flex_rp.cli.command_context import ConfigOption, JsonOption, StateOption

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from aks_flex_rp.arm.ids import ClusterId
    from aks_flex_rp.clusters.client import KubeClient
    from aks_flex_rp.clusters.connections import ClusterConnection
    from aks_flex_rp.clusters.prerequisites import Finding
    from aks_flex_rp.settings import ServiceSettings

app = typer.Typer(help="Clusters that nodes can be made for.", no_args_is_help=True)
Id = Annotated[str, typer.Argument(metavar="CLUSTER-ID", help="Its ARM id, or its name where that is enough.")]
OnlyOne = Annotated[
    str,
    typer.Argument(metavar="[CLUSTER-ID]", help="Its ARM id or its name; may be left out where there is one only."),
]
HIDDEN = {"ca_cert_data", "given", "ways"}  # from people, who can have them as JSON


@app.command()
def add(
    id: Annotated[
        str, typer.Argument(metavar="CLUSTER-ID", help="Its ARM id: /subscriptions/…/managedClusters/NAME.")
    ],
    kubeconfig: Annotated[
        Path | None, typer.Option(help="How to reach it; without, Azure is asked for its credentials.")
    ] = None,
    server: Annotated[str, typer.Option(help="The API server as nodes reach it, if another than for us.")] = "",
    dns: Annotated[str, typer.Option(help="Address of the cluster's DNS service, if it cannot be found.")] = "",
    location: Annotated[str, typer.Option(help="Its Azure region.")] = "",
    tenant: Annotated[str, typer.Option(help="Its Entra tenant.")] = "",
    follow_version: Annotated[
        bool, typer.Option(help="When the cluster is upgraded, nodes that were given no version follow.")
    ] = False,
    config: ConfigOption = None,
    state: StateOption = None,
) -> None:
    """Let nodes be made for a cluster, or renew the way to it. Nothing is changed unless the cluster answers."""
    from aks_flex_rp.clusters import connections
    from aks_flex_rp.clusters.facts import FactOverrides

    name = _whole_id(id)
    settings = command_context.load_settings(config, state)
    connection: ClusterConnection = (
        connections.load_kubeconfig(kubeconfig) if kubeconfig else connections.ArmConnection(str(name))
    )
    overrides = FactOverrides(server_url=server, dns_service_ip=dns, location=location, tenant_id=tenant)
    asyncio.run(_add(settings, name, connection, {"given": asdict(overrides), "followVersion": follow_version}))


async def _add(
    settings: ServiceSettings, name: ClusterId, connection: ClusterConnection, extra_facts: dict[str, Any]
) -> None:
    from aks_flex_rp.cluster_registry import connection_seal_context
    from aks_flex_rp.clusters import connections, prerequisites
    from aks_flex_rp.clusters.facts import FactOverrides, read_facts
    from aks_flex_rp.nodes.cluster_sync import SYNC_PENDING
    from aks_flex_rp.service import open_sealer
    from aks_flex_rp.store.model import AuditAction, AuditEvent, Cluster

    sealer = open_sealer(settings)
    async with (
        _client(settings, connection) as client,
        command_context.open_local_store(settings, make=True) as store,
    ):
        facts = await read_facts(client, FactOverrides(**extra_facts["given"]))
        await prerequisites.ensure_objects(client)
        before = await store.cluster(name.key)
        sealed = sealer.seal(connections.to_bytes(connection), connection_seal_context(name.key))
        version = before.version + 1 if before else 1
        # What the nodes of a cluster that was there before have may be of the past: the service looks, and renews it.
        document = {**facts.to_document(), **extra_facts, SYNC_PENDING: before is not None}
        added = Cluster(name.key, str(name), document, sealed, version)
        await store.put_cluster(added, before.version if before else None)
        what = AuditAction.CLUSTER_RENEWED if before else AuditAction.CLUSTER_ADDED
        await store.record(
            AuditEvent(_now(), "aks-flex-rp cluster", what, str(name), detail={"version": facts.version})
        )
    output.print_result(f"{name.name}: Kubernetes {facts.version} at {facts.server_url}, DNS {facts.dns_service_ip}")


@app.command("list")
def show_all(config: ConfigOption = None, state: StateOption = None, json: JsonOption = False) -> None:
    """List clusters."""
    clusters = asyncio.run(command_context.list_clusters(command_context.load_settings(config, state)))
    documents = [{"id": each.id, **each.facts} for each in clusters]
    rows = [
        (command_context.cluster_name(each), each.facts["version"], each.facts["server_url"], each.id)
        for each in clusters
    ]
    text = (
        output.format_table(rows, ("NAME", "VERSION", "API SERVER", "ID"))
        if rows
        else "no clusters; add one with `cluster add`"
    )
    output.print_result(text, documents, json)


@app.command()
def show(id: OnlyOne = "", config: ConfigOption = None, state: StateOption = None, json: JsonOption = False) -> None:
    """Show what the service knows of a cluster."""
    from aks_flex_rp.cli import output

    cluster = command_context.choose_cluster(
        asyncio.run(command_context.list_clusters(command_context.load_settings(config, state))), id
    )
    facts = {name: str(value) for name, value in cluster.facts.items() if name not in HIDDEN}
    output.print_result(output.format_pairs({"id": cluster.id, **facts}), {"id": cluster.id, **cluster.facts}, json)


@app.command()
def check(id: OnlyOne = "", config: ConfigOption = None, state: StateOption = None, json: JsonOption = False) -> None:
    """See whether a cluster is ready for flex nodes: its objects, and what the service may do there."""
    settings = command_context.load_settings(config, state)
    findings = asyncio.run(_check(settings, id))
    lines = [f"{each.level:<8} {each.what}: {each.why}" for each in findings]
    output.print_result("\n".join(lines), [asdict(each) for each in findings], json)
    if any(each.level == "problem" for each in findings):
        raise typer.Exit(6)


@app.command()
def remove(id: Id, config: ConfigOption = None, state: StateOption = None) -> None:
    """Forget a cluster that has no nodes any more. What was made in the cluster stays there."""
    settings = command_context.load_settings(config, state)
    output.print_result(f"{asyncio.run(_remove(settings, id))} is forgotten")


async def _remove(settings: ServiceSettings, text: str) -> str:
    from aks_flex_rp.store.model import AuditAction, AuditEvent, Conflict

    async with command_context.open_local_store(settings) as store:
        cluster = command_context.choose_cluster(await store.clusters(), text)
        try:
            await store.delete_cluster(cluster.key)
        except Conflict:
            raise ConfigError(
                "cluster-has-nodes",
                f"{cluster.id} still has flex nodes.",
                "Delete them first: `aks-flex-rp node list`, `aks-flex-rp node delete`.",
            ) from None
        await store.record(AuditEvent(_now(), "aks-flex-rp cluster", AuditAction.CLUSTER_REMOVED, cluster.id))
        return cluster.id


def _now() -> float:
    import time

    return time.time()


def _whole_id(text: str) -> ClusterId:
    found = parse_cluster_id(text)
    if found is None:
        raise ConfigError(
            "cluster-id-invalid",
            f"{text!r} is not the id of a cluster.",
            "It is like /subscriptions/<id>/resourceGroups/<group>/providers/Microsoft.ContainerService/"
            "managedClusters/<name>; for a cluster that Azure does not know, make one up in this form.",
        )
    return found


@asynccontextmanager
async def _client(settings: ServiceSettings, connection: ClusterConnection) -> AsyncIterator[KubeClient]:
    from aks_flex_rp.azure_identity import open_arm
    from aks_flex_rp.clusters.connections import ArmConnection
    from aks_flex_rp.clusters.managed_cluster import open_client

    client = open_client(connection, open_arm(settings) if isinstance(connection, ArmConnection) else None)
    try:
        yield client
    finally:
        await client.close()


async def _check(settings: ServiceSettings, text: str) -> list[Finding]:
    from aks_flex_rp.cluster_registry import connection_seal_context
    from aks_flex_rp.clusters import connections, prerequisites
    from aks_flex_rp.service import open_sealer

    async with command_context.open_local_store(settings) as store:
        cluster = command_context.choose_cluster(await store.clusters(), text)
    opened = open_sealer(settings).open(cluster.connection, connection_seal_context(cluster.key))
    async with _client(settings, connections.from_bytes(opened)) as client:
        return await prerequisites.check_cluster(client)
