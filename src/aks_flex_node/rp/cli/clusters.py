"""`cluster add|list|show|check|remove`: the clusters that nodes can be made for. Written into the service's store."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from aks_flex_node.errors import ConfigError
from aks_flex_node.rp.arm.ids import cluster_id
from aks_flex_node.rp.cli import options, screen, stores
from aks_flex_node.rp.cli.options import Config, Json, State

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from aks_flex_node.rp.arm.ids import ClusterId
    from aks_flex_node.rp.clusters.clients import Client
    from aks_flex_node.rp.clusters.connections import Connection
    from aks_flex_node.rp.clusters.findings import Finding
    from aks_flex_node.rp.settings import ServiceSettings

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
    config: Config = None,
    state: State = None,
) -> None:
    """Let nodes be made for a cluster, or renew the way to it. Nothing is changed unless the cluster answers."""
    from aks_flex_node.rp.clusters import connections
    from aks_flex_node.rp.clusters.facts import Given

    name = _whole_id(id)
    settings = options.load(config, state)
    connection: Connection = connections.load_kubeconfig(kubeconfig) if kubeconfig else connections.ByArm(str(name))
    given = Given(server_url=server, dns_service_ip=dns, location=location, tenant_id=tenant)
    asyncio.run(_add(settings, name, connection, {"given": asdict(given), "followVersion": follow_version}))


async def _add(settings: ServiceSettings, name: ClusterId, connection: Connection, said: dict[str, Any]) -> None:
    from aks_flex_node.rp.clusters import connections, objects
    from aks_flex_node.rp.clusters.facts import Given, read_facts
    from aks_flex_node.rp.connected import connection_context
    from aks_flex_node.rp.nodes.following import RENEWING
    from aks_flex_node.rp.service import open_sealer
    from aks_flex_node.rp.store.store import Cluster, Event

    sealer = open_sealer(settings)
    async with _client(settings, connection) as client, stores.opened(settings, make=True) as store:
        facts = await read_facts(client, Given(**said["given"]))
        await objects.ensure(client)
        before = await store.cluster(name.key)
        sealed = sealer.seal(connections.to_bytes(connection), connection_context(name.key))
        version = before.version + 1 if before else 1
        # What the nodes of a cluster that was there before have may be of the past: the service looks, and renews it.
        document = {**facts.to_document(), **said, RENEWING: before is not None}
        added = Cluster(name.key, str(name), document, sealed, version)
        await store.put_cluster(added, before.version if before else None)
        what = "cluster.renewed" if before else "cluster.added"
        await store.record(Event(_now(), "aks-flex-rp cluster", what, str(name), detail={"version": facts.version}))
    screen.say(f"{name.name}: Kubernetes {facts.version} at {facts.server_url}, DNS {facts.dns_service_ip}")


@app.command("list")
def show_all(config: Config = None, state: State = None, json: Json = False) -> None:
    """List clusters."""
    clusters = asyncio.run(stores.clusters(options.load(config, state)))
    documents = [{"id": each.id, **each.facts} for each in clusters]
    rows = [(stores.name_of(each), each.facts["version"], each.facts["server_url"], each.id) for each in clusters]
    text = (
        screen.table(rows, ("NAME", "VERSION", "API SERVER", "ID"))
        if rows
        else "no clusters; add one with `cluster add`"
    )
    screen.say(text, documents, json)


@app.command()
def show(id: OnlyOne = "", config: Config = None, state: State = None, json: Json = False) -> None:
    """Show what the service knows of a cluster."""
    from aks_flex_node.rp.cli import showing

    cluster = stores.chosen(asyncio.run(stores.clusters(options.load(config, state))), id)
    told = {name: str(value) for name, value in cluster.facts.items() if name not in HIDDEN}
    screen.say(showing.pairs({"id": cluster.id, **told}), {"id": cluster.id, **cluster.facts}, json)


@app.command()
def check(id: OnlyOne = "", config: Config = None, state: State = None, json: Json = False) -> None:
    """See whether a cluster is ready for flex nodes: its objects, and what the service may do there."""
    settings = options.load(config, state)
    findings = asyncio.run(_check(settings, id))
    lines = [f"{each.level:<8} {each.what}: {each.why}" for each in findings]
    screen.say("\n".join(lines), [asdict(each) for each in findings], json)
    if any(each.level == "problem" for each in findings):
        raise typer.Exit(6)


@app.command()
def remove(id: Id, config: Config = None, state: State = None) -> None:
    """Forget a cluster that has no nodes any more. What was made in the cluster stays there."""
    settings = options.load(config, state)
    screen.say(f"{asyncio.run(_remove(settings, id))} is forgotten")


async def _remove(settings: ServiceSettings, text: str) -> str:
    from aks_flex_node.rp.store.store import Conflict, Event

    async with stores.opened(settings) as store:
        cluster = stores.chosen(await store.clusters(), text)
        try:
            await store.delete_cluster(cluster.key)
        except Conflict:
            raise ConfigError(
                "cluster-has-nodes",
                f"{cluster.id} still has flex nodes.",
                "Delete them first: `aks-flex-rp node list`, `aks-flex-rp node delete`.",
            ) from None
        await store.record(Event(_now(), "aks-flex-rp cluster", "cluster.removed", cluster.id))
        return cluster.id


def _now() -> float:
    import time

    return time.time()


def _whole_id(text: str) -> ClusterId:
    found = cluster_id(text)
    if found is None:
        raise ConfigError(
            "cluster-id-invalid",
            f"{text!r} is not the id of a cluster.",
            "It is like /subscriptions/<id>/resourceGroups/<group>/providers/Microsoft.ContainerService/"
            "managedClusters/<name>; for a cluster that Azure does not know, make one up in this form.",
        )
    return found


@asynccontextmanager
async def _client(settings: ServiceSettings, connection: Connection) -> AsyncIterator[Client]:
    from aks_flex_node.rp.clusters.arm import open_client
    from aks_flex_node.rp.clusters.connections import ByArm
    from aks_flex_node.rp.identity import open_arm

    client = open_client(connection, open_arm(settings) if isinstance(connection, ByArm) else None)
    try:
        yield client
    finally:
        await client.close()


async def _check(settings: ServiceSettings, text: str) -> list[Finding]:
    from aks_flex_node.rp.clusters import connections, objects
    from aks_flex_node.rp.connected import connection_context
    from aks_flex_node.rp.service import open_sealer

    async with stores.opened(settings) as store:
        cluster = stores.chosen(await store.clusters(), text)
    opened = open_sealer(settings).open(cluster.connection, connection_context(cluster.key))
    async with _client(settings, connections.from_bytes(opened)) as client:
        return await objects.check(client)
