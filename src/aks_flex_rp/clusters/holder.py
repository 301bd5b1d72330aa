"""Marks a cluster as managed by one resource provider, so that a second one detects it.

Two providers deny each other's certificate requests, and so does one provider that has the cluster under two IDs. The
mark is a Secret without data, which the service's role names.
"""

from __future__ import annotations

import ipaddress
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from aks_flex_node.errors import ConfigError
from aks_flex_rp.clusters.client import ApiRefused
from aks_flex_rp.clusters.prerequisites import Finding

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from aks_flex_rp.clusters.client import KubeClient

MARK = "/api/v1/namespaces/kube-system/secrets/aks-flex-rp"
HOLDER, CLUSTER_ID = "flex.aks.azure.com/holder", "flex.aks.azure.com/cluster-id"  # annotations
HOLDER_FACT = "holder"  # stored with the facts of the cluster


@dataclass(frozen=True)
class ClusterHolder:
    """The resource provider that manages a cluster."""

    id: str  # random, stored with the cluster
    cluster_id: str  # ARM ID under which it has the cluster


def new_holder_id() -> str:
    return uuid.uuid4().hex


async def read_holder(client: KubeClient) -> ClusterHolder | None:
    try:
        found = await client.find(MARK)
    except ApiRefused:
        return None  # without the permission, the cluster is used as before
    notes = (found or {}).get("metadata", {}).get("annotations") or {}
    return ClusterHolder(notes[HOLDER], notes.get(CLUSTER_ID, "")) if notes.get(HOLDER) else None


async def write_holder(client: KubeClient, holder: ClusterHolder) -> None:
    notes = {HOLDER: holder.id, CLUSTER_ID: holder.cluster_id}
    metadata = {"name": "aks-flex-rp", "namespace": "kube-system", "annotations": notes}
    await client.apply(MARK, {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": "Opaque"})


async def remove_holder(client: KubeClient, holder_id: str) -> None:
    """Removes the mark if it is of this provider."""
    found = await client.find(MARK)
    if found and (found["metadata"].get("annotations") or {}).get(HOLDER) == holder_id:
        await client.delete(MARK, {"uid": found["metadata"]["uid"]})


def refuse_held_cluster(
    found: ClusterHolder | None, own: str, server_url: str, others: Iterable[tuple[str, Mapping[str, Any]]]
) -> None:
    """Raises ConfigError if the cluster is already managed: by this provider under another ID, or by another one.

    `others` are the IDs and facts of the other clusters of this provider.
    """
    for other_id, facts in others:
        if facts.get("server_url") == server_url or (found and facts.get(HOLDER_FACT) == found.id):
            raise ConfigError(
                "cluster-already-added",
                f"The API server {server_url} is already added as {other_id}.",
                f"Use that ID. To use the new ID instead, run `aks-flex-rp cluster remove {other_id}` first.",
            )
    if found and found.id != own:
        raise ConfigError(
            "cluster-already-managed",
            f"The cluster at {server_url} is already managed by another resource provider, as {found.cluster_id}.",
            "Run `aks-flex-rp cluster remove` where that provider runs. If it no longer exists, or to take over the "
            "cluster, add `--force`. The nodes of the other provider can then no longer join.",
        )


async def check_holder(client: KubeClient, own: str) -> Finding:
    """Checks that this provider, and no other one, manages the cluster."""
    found = await read_holder(client)
    if found is None:
        why = "The cluster is not marked as managed by this provider. Run `aks-flex-rp cluster add` again."
        return Finding("warning", "resource provider", why)
    if found.id != own:
        why = f"Another resource provider manages the cluster, as {found.cluster_id}. Each denies the other's nodes."
        return Finding("problem", "resource provider", why)
    return Finding("ok", "resource provider", "Only this resource provider manages the cluster.")


def loopback_warning(server_url: str) -> str:
    """Returns a warning if nodes on other machines cannot use this API server URL, or an empty string."""
    host = (urlsplit(server_url).hostname or "").lower()
    try:
        loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = host == "localhost" or host.endswith(".localhost")
    if not loopback:
        return ""
    return (
        f"The API server URL {server_url} is a loopback address, which nodes on other machines cannot reach. "
        "Pass the URL for nodes with `--server`."
    )
