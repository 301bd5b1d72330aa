"""Interface between the cluster controllers and the rest of the service: events they report and questions they ask.

Every event may be delivered more than once, by several replicas or after a restart; an event that could not be
handled is delivered again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from aks_flex_rp.clusters.facts import ClusterFacts
    from aks_flex_rp.clusters.taints import DesiredTaints
    from aks_flex_rp.join_state import AccessMethod, ClusterAccess


class ClusterEventHandler(Protocol):
    async def expects(self, cluster: str, node: str, token_id: str) -> bool:
        """Whether this token is the node's current one."""
        ...

    async def expects_node(self, cluster: str, node: str) -> bool:
        """Whether this is a flex node."""
        ...

    async def access(self, cluster: str, node: str) -> ClusterAccess | None:
        """What the identity of a flex node was given in the cluster; None when nothing, or this is no flex node."""
        ...

    async def way(self, cluster: str, node: str) -> AccessMethod | None:
        """How it is to join by its identity; None for one that joins by a token, and for no flex node."""
        ...

    async def accesses(self, cluster: str) -> dict[str, ClusterAccess]:
        """The same for all of its flex nodes that were given something."""
        ...

    async def withdrawn(self, cluster: str, node: str) -> None:
        """What its identity had there was taken, because it is nobody's any more."""
        ...

    async def asked(self, cluster: str, node: str, identity: str, csr: str) -> bool:
        """Its identity asks for its certificate, and is about to get it. False: it is not the node's any more."""
        ...

    async def certified(self, cluster: str, node: str, csr: str) -> None:
        """That certificate was issued."""
        ...

    async def servers(self, cluster: str) -> frozenset[str]:
        """URLs by which some of its flex nodes know the API server, beside that by which all others do."""
        ...

    async def taints(self, cluster: str, node: str) -> DesiredTaints | None:
        """What a flex node's should be; None when this is no flex node."""
        ...

    async def deleted(self, cluster: str, node: str) -> float | None:
        """When this was deleted; None while it is a flex node, and when it never was one."""
        ...

    async def removed(self, cluster: str, node: str) -> None:
        """Its Node was taken out of the cluster, because the machine will not do it."""
        ...

    async def attempted(self, cluster: str, node: str, token_id: str, csr: str) -> bool:
        """The first request for a certificate is accepted, and not yet approved: the config URL must die now."""
        ...

    async def refused(self, cluster: str, node: str, token_id: str, csr: str, why: str) -> None:
        """A request was denied. Where its token is unknown, `node` is what it wanted to be, if anything.

        `token_id` is empty where none was used.
        """
        ...

    async def issued(self, cluster: str, node: str, token_id: str, csr: str) -> None:
        """It is told before the token is revoked."""
        ...

    async def failed(self, cluster: str, node: str, token_id: str, why: str) -> None:
        """The token ends without a certificate: its request was refused, the signer gave up, or it took too long.

        It is told before the token is revoked; and only of the node's current token.
        """
        ...

    async def observed(self, cluster: str, node: str, ready: dict[str, Any] | None) -> None:
        """The Ready condition of a flex node, with its kubelet's version as `kubeletVersion`; None: it is gone."""
        ...

    async def present(self, cluster: str, names: frozenset[str]) -> None:
        """All Nodes that there are just now: whoever is not among them is gone, since whenever."""
        ...

    async def cluster_changed(self, cluster: str, facts: ClusterFacts) -> None:
        """What nodes must know of it: version, CA, DNS address, API server. It is told at every look, new or not."""
        ...
