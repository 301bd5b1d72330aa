"""AKS clusters: gets the kubeconfig and the properties of the cluster from Azure Resource Manager."""

from __future__ import annotations

import asyncio
import base64
import binascii
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from aks_flex_node.errors import ClusterError
from aks_flex_rp.clusters.client import FixedConnection, KubeClient
from aks_flex_rp.clusters.connections import ArmConnection, parse_kubeconfig

if TYPE_CHECKING:
    from aks_flex_rp.clusters.connections import ClusterConnection, DirectConnection

API_VERSION = "2025-05-01"


class ArmReader(Protocol):
    """The part of an ARM client that is used here. It may block."""

    def get(self, path: str, api_version: str) -> dict[str, Any]: ...

    def post(self, path: str, api_version: str) -> dict[str, Any]: ...


@dataclass
class ManagedConnection:
    """Gets the admin kubeconfig from Azure, each time again because Azure may have rotated it."""

    renewable = True

    resource_id: str
    arm: ArmReader

    async def connection(self) -> DirectConnection:
        path = f"{self.resource_id}/listClusterAdminCredential"
        answer = await asyncio.to_thread(self.arm.post, path, API_VERSION)
        return parse_kubeconfig(self._kubeconfig(answer), f"The kubeconfig of {self.resource_id}")

    async def managed_cluster(self) -> dict[str, Any] | None:
        return await asyncio.to_thread(self.arm.get, self.resource_id, API_VERSION)

    def _kubeconfig(self, answer: dict[str, Any]) -> str:
        try:
            return base64.b64decode(answer["kubeconfigs"][0]["value"], validate=True).decode()
        except (LookupError, TypeError, binascii.Error, UnicodeDecodeError):
            raise ClusterError(
                "cluster-credential-missing",
                f"Azure returned no kubeconfig for {self.resource_id}.",
                "Enable local accounts on the cluster, or add the cluster with a kubeconfig.",
            ) from None


def open_client(connection: ClusterConnection, arm: ArmReader | None = None) -> KubeClient:
    """Creates a client. It does not connect before the first request."""
    if not isinstance(connection, ArmConnection):
        return KubeClient(FixedConnection(connection))
    if arm is None:
        raise AssertionError("A connection through Azure needs a client of Azure.")
    return KubeClient(ManagedConnection(connection.resource_id, arm))
