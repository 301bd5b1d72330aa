"""Delivery as the service sees it: built in, or Azure Blob."""

from __future__ import annotations

from typing import Protocol


class Delivering(Protocol):
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
