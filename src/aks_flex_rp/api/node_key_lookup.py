"""Finds the keys of the node that an assertion names: in memory for nodes that are heard from, else in the store.

Every client can sign an assertion with a key of its own. So a lookup in the store that finds nothing counts against
the address of the client, and an address with too many of them causes no other one. Failed requests with URLs from
the same address do not count. Keys that were found before are
looked up in any case, so that a client does not stop the nodes that share its address.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from aks_flex_rp.auth.auth_errors import TooManyFailures
from aks_flex_rp.auth.node_assertions import KnownNode

if TYPE_CHECKING:
    from aks_flex_rp.api.poll_cache import PollCache
    from aks_flex_rp.auth.node_assertions import SignedAssertion
    from aks_flex_rp.auth.rate_limit import RateLimiter
    from aks_flex_rp.nodes.context import ClusterOperations


MAX_FOUND = 200_000  # entries


@dataclass(frozen=True)
class NodeKeyLookup:
    clusters: ClusterOperations
    poll_cache: PollCache
    limits: RateLimiter
    audiences: dict[str, str] = field(default_factory=dict)  # of clusters that were found, by their keys
    found: dict[str, None] = field(default_factory=dict)  # thumbprints of nodes, the oldest first

    async def find(self, assertion: SignedAssertion) -> KnownNode | None:
        """Returns what verifies an assertion. The keys of a deleted node are still known.

        Raises TooManyFailures if the store would have to be read for an address that has failed too often.
        """
        cached = self.poll_cache.cached(assertion.node)
        key, address = assertion.thumbprint, f"node keys {assertion.source}"
        is_same = self.audiences.get(assertion.node[0]) == assertion.audience
        if cached and is_same and key in cached.keys.known:
            return KnownNode(assertion.audience, cached.keys)
        if key not in self.found and (wait := self.limits.wait(address, "read")):
            raise TooManyFailures(wait)
        node = await self._read(assertion)
        self.found.pop(key, None)  # only now: the store may fail
        if node is None or key not in node.keys.known:
            self.limits.acquire(address, "read")
            return node
        if len(self.found) >= MAX_FOUND:
            del self.found[next(iter(self.found))]
        self.found[key] = None
        return node

    async def _read(self, assertion: SignedAssertion) -> KnownNode | None:
        key = assertion.node[0]
        cluster = await self.clusters.find(key)
        if cluster is None or not cluster.key_audience:
            self.audiences.pop(key, None)
            return None
        self.audiences[key] = cluster.key_audience
        if cluster.key_audience != assertion.audience:
            return None
        return KnownNode(cluster.key_audience, (await self.poll_cache.refresh(assertion.node)).keys)
