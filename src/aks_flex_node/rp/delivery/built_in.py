"""Delivery by the service itself, from its store.

The URL ends in a random secret. The store has nothing but the secret's hash, and the bundle sealed: from a copy of
the database neither can be made again. A delivery is looked up by the hash, so that the time it takes says nothing
about how much of a guess was right.
"""

from __future__ import annotations

import hashlib
import secrets
from typing import TYPE_CHECKING, NamedTuple

from aks_flex_node.api import config_urls
from aks_flex_node.rp.store.store import Delivery

if TYPE_CHECKING:
    from collections.abc import Callable

    from aks_flex_node.rp.sealing import Sealer
    from aks_flex_node.rp.store.store import Store

SECRET_BYTES = 32


class Fetched(NamedTuple):
    cluster: str
    node: str
    bundle: bytes


class BuiltIn:
    def __init__(self, store: Store, sealer: Sealer, origin: str, pin: Callable[[], str] = str) -> None:
        """`origin`: how machines reach the service; `pin`: the CA that its certificate now hangs from, or nothing."""
        self._store, self._sealer, self._origin, self._pin = store, sealer, origin, pin

    async def start(self) -> None:
        """All it needs is the store, which is there."""

    async def put(self, cluster_key: str, node_key: str, bundle: bytes, expires: float) -> str:
        secret = secrets.token_urlsafe(SECRET_BYTES)
        name = delivery_id(secret)
        sealed = self._sealer.seal(bundle, context(name, cluster_key, node_key))
        await self._store.put_delivery(Delivery(name, cluster_key, node_key, expires, sealed))
        return config_urls.build(self._origin, secret, self._pin())

    async def fetch(self, path_secret: str, now: float) -> Fetched | None:
        """The bundle that this secret is for; None when there is none, or none any more."""
        found = await self._store.fetch_delivery(delivery_id(path_secret), now)
        if found is None:
            return None
        bundle = self._sealer.open(found.bundle, context(found.id, found.cluster, found.node))
        return Fetched(found.cluster, found.node, bundle)

    async def revoke(self, cluster_key: str, node_key: str) -> bool:
        return await self._store.revoke_deliveries(cluster_key, node_key) > 0

    async def sweep(self, now: float) -> int:
        return await self._store.sweep(now)


def delivery_id(secret: str) -> str:
    return hashlib.sha256(secret.encode(errors="replace")).hexdigest()


def context(name: str, cluster_key: str, node_key: str) -> str:
    """What a sealed bundle is bound to."""
    return f"delivery {name} of {cluster_key}/{node_key}"
