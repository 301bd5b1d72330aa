"""Delivery interface, and the built-in delivery: encrypted bundles in the store, fetched by a config URL.

The URL ends in a random secret, and the store contains only its hash, so a copy of the database reveals neither.
Lookup is by hash, so response times reveal nothing about a guess.
"""

from __future__ import annotations

import hashlib
import json
import logging
import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from aks_flex_node.api import config_urls
from aks_flex_node.api.config_urls import KEY_URL
from aks_flex_node.errors import ConfigError
from aks_flex_rp.arm.ids import record_resource
from aks_flex_rp.counted_events import CountedEvents
from aks_flex_rp.store.model import AuditAction, AuditEvent, AuditOutcome, Delivery

if TYPE_CHECKING:
    from collections.abc import Callable

    from aks_flex_rp.crypto.encryption import Sealer
    from aks_flex_rp.store.base import Store


SECRET_BYTES = 32
log = logging.getLogger(__name__)


class FetchedBundle(NamedTuple):
    cluster: str
    node: str
    bundle: bytes
    expires: float  # of the URL, by which the join attempt is known that it belongs to


@dataclass
class BuiltInDelivery:
    store: Store
    sealer: Sealer
    origin: str  # URL of the service
    pin: Callable[[], str] = str  # of its private CA, if any
    refused: CountedEvents = field(default_factory=CountedEvents)

    async def start(self) -> None:
        """Does nothing: the store is already started."""

    async def put(self, cluster_key: str, node_key: str, bundle: bytes, expires: float) -> str:
        secret = secrets.token_urlsafe(SECRET_BYTES)
        name = delivery_id(secret)
        sealed = self.sealer.seal(bundle, bundle_seal_context(name, cluster_key, node_key, expires))
        await self.store.put_delivery(Delivery(name, cluster_key, node_key, expires, sealed))
        return config_urls.build(self.origin, secret, self.pin())

    async def fetch(self, path_secret: str, now: float) -> FetchedBundle | None:
        """Returns the bundle of this secret, or None if it does not exist, has expired, was revoked, or its row was
        changed without the service.
        """
        found = await self.store.fetch_delivery(delivery_id(path_secret), now)
        if found is None:
            return None
        context = bundle_seal_context(found.id, found.cluster, found.node, found.expires)
        try:
            bundle = self.sealer.open(found.bundle, context)
        except ConfigError:
            log.error("The config URL of node %s of %s is refused: its row was changed.", found.node, found.cluster)
            await self.refused.record(
                self.store,
                AuditEvent(
                    now,
                    "aks-flex-rp",
                    AuditAction.RECORD_REFUSED,
                    record_resource((found.cluster, found.node)),
                    outcome=AuditOutcome.DENIED,
                    detail={"reason": "the row of its config URL was changed without the service"},
                ),
            )
            return None
        return FetchedBundle(found.cluster, found.node, bundle, found.expires)

    async def revoke(self, cluster_key: str, node_key: str) -> bool:
        return await self.store.revoke_deliveries(cluster_key, node_key) > 0

    async def sweep(self, now: float) -> int:
        return await self.store.sweep(now)


def delivery_id(secret: str) -> str:
    return hashlib.sha256(secret.encode(errors="replace")).hexdigest()


def bundle_seal_context(name: str, cluster_key: str, node_key: str, expires: float) -> str:
    """Returns the context that binds an encrypted bundle to its delivery, its node, and the expiry of its URL, by
    which the record of the node names the join attempt.
    """
    return f"delivery {name} of {cluster_key}/{node_key} until {float(expires)!r}"


class BundleDelivery(Protocol):
    """Delivers config bundles. A node has at most one valid URL.

    Everyone with the URL can fetch the bundle until it expires or is revoked. The built-in delivery sees every fetch.
    Azure Blob Storage reports none, so the service then learns from the node's next request that it has its
    configuration.
    """

    async def start(self) -> None:
        """Creates the required resources."""
        ...

    async def put(self, cluster_key: str, node_key: str, bundle: bytes, expires: float) -> str:
        """Stores a bundle and returns its URL. All earlier URLs of the node are invalid when this returns."""
        ...

    async def revoke(self, cluster_key: str, node_key: str) -> bool:
        """Revokes the URL of a node. Returns whether there was one."""
        ...

    async def sweep(self, now: float) -> int:
        """Deletes expired bundles and returns their number."""
        ...


@dataclass(frozen=True)
class SplitDelivery:
    """Delivery through a storage account without anything that is worth stealing there.

    The storage account cannot tell who fetches a bundle. So it gets no client secret, and for a node that needs the
    service a second URL, at the service itself: its fetch binds the key of the machine and returns the complete
    bundle. A node that needs neither joins with the storage account alone.
    """

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
