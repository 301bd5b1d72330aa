"""Delivery interface, and the built-in delivery: bundles are kept sealed in the store and fetched by a config URL.

The URL ends in a random secret of which the store keeps only the hash, so neither can be recovered from a copy of the
database. Lookup is by hash, so response times reveal nothing about a guess.
"""

from __future__ import annotations

import hashlib
import secrets
from typing import TYPE_CHECKING, NamedTuple, Protocol

from aks_flex_node.api import config_urls
from aks_flex_rp.store.model import Delivery

if TYPE_CHECKING:
    from collections.abc import Callable

    from aks_flex_rp.crypto.encryption import Sealer
    from aks_flex_rp.store.protocol import Store


SECRET_BYTES = 32


class FetchedBundle(NamedTuple):
    cluster: str
    node: str
    bundle: bytes


class BuiltInDelivery:
    def __init__(self, store: Store, sealer: Sealer, origin: str, pin: Callable[[], str] = str) -> None:
        """`origin`: how machines reach the service; `pin`: the CA that its certificate now hangs from, or nothing."""
        self._store, self._sealer, self._origin, self._pin = store, sealer, origin, pin

    async def start(self) -> None:
        """All it needs is the store, which is there."""

    async def put(self, cluster_key: str, node_key: str, bundle: bytes, expires: float) -> str:
        secret = secrets.token_urlsafe(SECRET_BYTES)
        name = delivery_id(secret)
        sealed = self._sealer.seal(bundle, bundle_seal_context(name, cluster_key, node_key))
        await self._store.put_delivery(Delivery(name, cluster_key, node_key, expires, sealed))
        return config_urls.build(self._origin, secret, self._pin())

    async def fetch(self, path_secret: str, now: float) -> FetchedBundle | None:
        """The bundle that this secret is for; None when there is none, or none any more."""
        found = await self._store.fetch_delivery(delivery_id(path_secret), now)
        if found is None:
            return None
        bundle = self._sealer.open(found.bundle, bundle_seal_context(found.id, found.cluster, found.node))
        return FetchedBundle(found.cluster, found.node, bundle)

    async def revoke(self, cluster_key: str, node_key: str) -> bool:
        return await self._store.revoke_deliveries(cluster_key, node_key) > 0

    async def sweep(self, now: float) -> int:
        return await self._store.sweep(now)


def delivery_id(secret: str) -> str:
    return hashlib.sha256(secret.encode(errors="replace")).hexdigest()


def bundle_seal_context(name: str, cluster_key: str, node_key: str) -> str:
    """What a sealed bundle is bound to."""
    return f"delivery {name} of {cluster_key}/{node_key}"


class BundleDelivery(Protocol):
    """A node has at most one URL that works.

    Whoever has the URL can fetch the bundle until it expires or is revoked. The built-in delivery sees every fetch;
    Azure Blob does not tell us of any, so a service that delivers by it learns that a node has its configuration
    from what the node does next.
    """

    async def start(self) -> None:
        """Make what has to be there first."""
        ...

    async def put(self, cluster_key: str, node_key: str, bundle: bytes, expires: float) -> str:
        """The complete URL of a new delivery. Every earlier URL of the node is dead when this returns."""
        ...

    async def revoke(self, cluster_key: str, node_key: str) -> bool:
        """Whether there was a URL, which is dead now."""
        ...

    async def sweep(self, now: float) -> int:
        """Forget what has expired; how many there were."""
        ...
