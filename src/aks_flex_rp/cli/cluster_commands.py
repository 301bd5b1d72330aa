"""Commands `cluster add|list|show|check|remove`. They access the service's store directly."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from aks_flex_node.errors import ClusterError, CommandUsageError, ConfigError, FlexError
from aks_flex_rp.arm.ids import parse_cluster_id
from aks_flex_rp.cli import command_context, output
from aks_flex_rp.cli.command_context import ConfigOption, LocalOptions, StateOption, with_settings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from aks_flex_rp.arm.ids import ClusterId
    from aks_flex_rp.clusters.client import KubeClient
    from aks_flex_rp.clusters.connections import ClusterConnection
    from aks_flex_rp.clusters.prerequisites import Finding
    from aks_flex_rp.settings import ServiceSettings
    from aks_flex_rp.store.model import Cluster

app = typer.Typer()
Id = Annotated[str, typer.Argument(metavar="CLUSTER-ID", help="ARM ID or unique name of the cluster.")]
OnlyOne = Annotated[
    str,
    typer.Argument(metavar="[CLUSTER-ID]", help="ARM ID or name of the cluster. Optional with one cluster."),
]
HIDDEN = {"ca_cert_data", "given", "ways", "holder"}  # shown only with --json


@app.command()
def add(
    id: Annotated[str, typer.Argument(metavar="CLUSTER-ID", help="ARM ID: /subscriptions/…/managedClusters/NAME.")],
    kubeconfig: Annotated[
        Path | None,
        typer.Option(metavar="FILE", readable=False, help="Kubeconfig file. Default: credentials from Azure."),
    ] = None,
    server: Annotated[str, typer.Option(metavar="URL", help="API server URL for nodes, if different.")] = "",
    dns: Annotated[
        str, typer.Option(metavar="ADDRESS", help="IP address of the cluster DNS service, if not detected.")
    ] = "",
    location: Annotated[str, typer.Option(metavar="REGION", help="Azure region of the cluster.")] = "",
    tenant: Annotated[str, typer.Option(metavar="ID", help="Entra tenant of the cluster.")] = "",
    follow_version: Annotated[
        bool, typer.Option(help="Update nodes without a set version when the cluster is upgraded.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Take the cluster over from another provider or another ID.")
    ] = False,
    config: ConfigOption = None,
    state: StateOption = None,
) -> None:
    """Add a cluster, or update its connection.

    Nothing is changed if the cluster is unreachable.
    """
    from aks_flex_rp.clusters import connections
    from aks_flex_rp.clusters.facts import FactOverrides

    name = _parse_id(id)
    if server and not server.startswith("https://"):
        raise CommandUsageError(
            "server-url-invalid", f"--server {server} is not an https URL.", "Use the form `https://HOST:PORT`."
        )
    settings = command_context.load_settings(config, state)
    connection: ClusterConnection = (
        connections.load_kubeconfig(kubeconfig) if kubeconfig else connections.ArmConnection(str(name))
    )
    overrides = FactOverrides(server_url=server, dns_service_ip=dns, location=location, tenant_id=tenant)
    extra_facts = {"given": asdict(overrides), "followVersion": follow_version}
    asyncio.run(_add(settings, name, connection, extra_facts, force=force))


async def _add(
    settings: ServiceSettings,
    name: ClusterId,
    connection: ClusterConnection,
    extra_facts: dict[str, Any],
    *,
    force: bool,
) -> None:
    from aks_flex_rp.cluster_registry import connection_seal_context
    from aks_flex_rp.clusters import connections, holder, prerequisites
    from aks_flex_rp.clusters.facts import FactOverrides, read_facts
    from aks_flex_rp.nodes.cluster_sync import SYNC_PENDING
    from aks_flex_rp.service import open_sealer
    from aks_flex_rp.store.model import AuditAction, AuditEvent, Cluster
    from aks_flex_rp.store.record_authenticator import first_revision

    sealer = open_sealer(settings)
    async with (
        _client(settings, connection) as client,
        command_context.open_local_store(settings, make=True) as store,
    ):
        facts = await read_facts(client, FactOverrides(**extra_facts["given"]))
        before = await store.cluster(name.key)
        own = str((before.facts if before else {}).get(holder.HOLDER_FACT) or holder.new_holder_id())
        others = [(each.id, each.facts) for each in await store.clusters() if each.key != name.key]
        try:
            holder.refuse_held_cluster(await holder.read_holder(client), own, facts.server_url, others)
        except ConfigError as error:
            if not force:
                raise
            output.print_warning(f"{error.message} It is taken over.")
        await prerequisites.ensure_objects(client)
        sealed = sealer.seal(connections.to_bytes(connection), connection_seal_context(name.key))
        version = before.version + 1 if before else first_revision(_now())
        # The configuration of existing nodes may be outdated. The service checks and updates it.
        document = {**facts.to_document(), **extra_facts, holder.HOLDER_FACT: own}
        document |= {SYNC_PENDING: before is not None}
        added = Cluster(name.key, str(name), document, sealed, version)
        await store.put_cluster(added, before.version if before else None)
        # After the cluster is stored: a command that was interrupted before would not recognize its own mark.
        await holder.write_holder(client, holder.ClusterHolder(own, str(name)))
        what = AuditAction.CLUSTER_RENEWED if before else AuditAction.CLUSTER_ADDED
        await store.record(
            AuditEvent(_now(), "aks-flex-rp cluster", what, str(name), detail={"version": facts.version})
        )
    if warning := holder.loopback_warning(facts.server_url):
        output.print_warning(warning)
    output.print_result(f"{name.name}: Kubernetes {facts.version} at {facts.server_url}, DNS {facts.dns_service_ip}")


@app.command("list")
@with_settings
def show_all(local: LocalOptions) -> None:
    """List clusters."""
    clusters = asyncio.run(command_context.list_clusters(local.settings))
    documents = [{"id": each.id, **each.facts} for each in clusters]
    rows = [
        (command_context.cluster_name(each), each.facts["version"], each.facts["server_url"], each.id)
        for each in clusters
    ]
    text = output.format_table(
        rows, ("NAME", "VERSION", "API SERVER", "ID"), "No clusters. Add one with `aks-flex-rp cluster add`."
    )
    local.print_result(text, documents)


@app.command()
@with_settings
def show(local: LocalOptions, id: OnlyOne = "") -> None:
    """Show a cluster."""
    cluster = command_context.choose_cluster(asyncio.run(command_context.list_clusters(local.settings)), id)
    facts = {name: str(value) for name, value in cluster.facts.items() if name not in HIDDEN}
    local.print_result(output.format_pairs({"id": cluster.id, **facts}), {"id": cluster.id, **cluster.facts})


@app.command()
@with_settings
def check(local: LocalOptions, id: OnlyOne = "") -> None:
    """Check the prerequisites of a cluster.

    Checks the required objects in the cluster and the permissions of the service. Exits with 6 on a problem.
    """
    findings = asyncio.run(_check(local.settings, id))
    lines = [f"{each.level:<8} {each.what}: {each.why}" for each in findings]
    local.print_result("\n".join(lines), [asdict(each) for each in findings])
    if any(each.level == "problem" for each in findings):
        raise typer.Exit(6)


@app.command()
def remove(id: Id, config: ConfigOption = None, state: StateOption = None) -> None:
    """Remove a cluster without nodes from the service.

    Role bindings and policies that the service created in the cluster are not removed.
    """
    settings = command_context.load_settings(config, state)
    output.print_result(f"Removed {asyncio.run(_remove(settings, id))}.")


async def _remove(settings: ServiceSettings, text: str) -> str:
    from aks_flex_rp.store.model import AuditAction, AuditEvent, Conflict

    async with command_context.open_local_store(settings) as store:
        cluster = command_context.choose_cluster(await command_context.known_clusters(store), text)
        own = str(cluster.facts.get("holder", ""))
        connection = cluster_connection(settings, cluster) if own else None
        try:
            await store.delete_cluster(cluster.key)
        except Conflict:
            raise ConfigError(
                "cluster-has-nodes",
                f"{cluster.id} still has flex nodes.",
                "Delete them first: run `aks-flex-rp node list` and `aks-flex-rp node delete`.",
            ) from None
        await store.record(AuditEvent(_now(), "aks-flex-rp cluster", AuditAction.CLUSTER_REMOVED, cluster.id))
    if connection:
        await _remove_mark(settings, connection, own)
    return cluster.id


async def _remove_mark(settings: ServiceSettings, connection: ClusterConnection, own: str) -> None:
    """Removes the provider's mark from a removed cluster, so that another provider can add it."""
    from aks_flex_rp.clusters import holder

    try:
        async with _client(settings, connection) as client:
            await holder.remove_holder(client, own)
    except FlexError as error:
        output.print_warning(
            f"The mark of this provider in the cluster was not removed: {error}. Remove it with "
            "`kubectl -n kube-system delete secret aks-flex-rp`, or add the cluster elsewhere with --force."
        )


def cluster_connection(settings: ServiceSettings, cluster: Cluster) -> ClusterConnection | None:
    """Returns the connection to a cluster, or None if it cannot be decrypted."""
    try:
        return _decrypted_connection(settings, cluster)
    except (FlexError, ValueError):
        return None


def _decrypted_connection(settings: ServiceSettings, cluster: Cluster) -> ClusterConnection:
    from aks_flex_rp.cluster_registry import connection_seal_context
    from aks_flex_rp.clusters import connections
    from aks_flex_rp.service import open_sealer

    opened = open_sealer(settings).open(cluster.connection, connection_seal_context(cluster.key))
    return connections.from_bytes(opened)


def _now() -> float:
    import time

    return time.time()


def _parse_id(text: str) -> ClusterId:
    found = parse_cluster_id(text)
    if found is None:
        raise ConfigError(
            "cluster-id-invalid",
            f"{text!r} is not a cluster ID.",
            "Use /subscriptions/<id>/resourceGroups/<group>/providers/Microsoft.ContainerService/"
            "managedClusters/<name>. For a cluster outside Azure, choose the values freely.",
        )
    return found


@asynccontextmanager
async def _client(settings: ServiceSettings, connection: ClusterConnection) -> AsyncIterator[KubeClient]:
    from aks_flex_rp.azure_identity import open_arm
    from aks_flex_rp.clusters.client import ApiRefused
    from aks_flex_rp.clusters.connections import ArmConnection
    from aks_flex_rp.clusters.managed_cluster import open_client

    client = open_client(connection, open_arm(settings) if isinstance(connection, ArmConnection) else None)
    try:
        yield client
    except ApiRefused as refusal:
        raise ClusterError(
            "cluster-forbidden",
            f"The cluster rejected a request of this command: {refusal.message.rstrip('.')}.",
            "Grant the permissions in `20-rbac.yaml` to the account of the kubeconfig, or use another kubeconfig.",
            retryable=refusal.status == 429 or refusal.status >= 500,
        ) from refusal
    finally:
        await client.close()


async def _check(settings: ServiceSettings, text: str) -> list[Finding]:
    from aks_flex_rp.clusters import holder, prerequisites

    async with command_context.open_local_store(settings) as store:
        cluster = command_context.choose_cluster(await command_context.known_clusters(store), text)
    async with _client(settings, _decrypted_connection(settings, cluster)) as client:
        findings = await prerequisites.check_cluster(client, allow_exec=settings.nodes.allow_exec)
        findings.append(await holder.check_holder(client, str(cluster.facts.get(holder.HOLDER_FACT, ""))))
    if warning := holder.loopback_warning(str(cluster.facts.get("server_url", ""))):
        findings.append(prerequisites.Finding("warning", "API server URL", warning))
    return findings
