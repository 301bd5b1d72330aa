"""Delivery through a storage account without anything that is worth stealing there.

The storage account cannot tell who fetches a bundle. So it gets no client secret, and for a node that needs the
service a second URL, at the service itself: its fetch binds the key of the machine and returns the complete bundle. A
node that needs neither joins with the storage account alone.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aks_flex_node.api.config_urls import KEY_URL

if TYPE_CHECKING:
    from aks_flex_rp.delivery.config_url import BundleDelivery


@dataclass(frozen=True)
class SplitDelivery:
    storage: BundleDelivery
    service: BundleDelivery

    async def start(self) -> None:
        await self.service.start()
        await self.storage.start()

    async def put(self, cluster_key: str, node_key: str, bundle: bytes, expires: float) -> str:
        document = json.loads(bundle)
        if not _needs_service(document["config"]):
            await self.service.revoke(cluster_key, node_key)
            return await self.storage.put(cluster_key, node_key, bundle, expires)
        url = await self.service.put(cluster_key, node_key, bundle, expires)
        public = {**document, "config": _without_secret(document["config"]), KEY_URL: url}
        return await self.storage.put(cluster_key, node_key, json.dumps(public).encode(), expires)

    async def revoke(self, cluster_key: str, node_key: str) -> bool:
        there = await self.service.revoke(cluster_key, node_key)
        return await self.storage.revoke(cluster_key, node_key) or there

    async def sweep(self, now: float) -> int:
        await self.service.sweep(now)
        return await self.storage.sweep(now)


def _needs_service(config: dict[str, Any]) -> bool:
    """Returns whether the node calls the service after it has its configuration, or has a client secret."""
    return bool(config.get("continuousMonitoring")) or _without_secret(config) != config


def _without_secret(config: dict[str, Any]) -> dict[str, Any]:
    azure = config.get("azure") or {}
    principal = azure.get("servicePrincipal")
    if not principal:
        return config
    public = {name: value for name, value in principal.items() if name != "clientSecret"}
    return {**config, "azure": {**azure, "servicePrincipal": public}}
