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
    async def is_current_token(self, cluster: str, node: str, token_id: str) -> bool:
        """Whether this token is the node's current one."""
        ...

    async def is_flex_node(self, cluster: str, node: str) -> bool:
        """Whether this is a flex node."""
        ...

    async def granted_access(self, cluster: str, node: str) -> ClusterAccess | None:
        """What the identity of a flex node was given in the cluster; None when nothing, or this is no flex node."""
        ...

    async def access_method(self, cluster: str, node: str) -> AccessMethod | None:
        """How it is to join by its identity; None for one that joins by a token, and for no flex node."""
        ...

    async def all_granted_access(self, cluster: str) -> dict[str, ClusterAccess]:
        """The same for all of its flex nodes that were given something."""
        ...

    async def on_access_withdrawn(self, cluster: str, node: str) -> None:
        """What its identity had there was taken, because it is nobody's any more."""
        ...

    async def on_identity_csr(self, cluster: str, node: str, identity: str, csr: str) -> bool:
        """Its identity asks for its certificate, and is about to get it. False: it is not the node's any more."""
        ...

    async def on_identity_certificate(self, cluster: str, node: str, csr: str) -> None:
        """That certificate was issued."""
        ...

    async def api_server_urls(self, cluster: str) -> frozenset[str]:
        """URLs by which some of its flex nodes know the API server, beside that by which all others do."""
        ...

    async def desired_taints(self, cluster: str, node: str) -> DesiredTaints | None:
        """What a flex node's should be; None when this is no flex node."""
        ...

    async def deletion_time(self, cluster: str, node: str) -> float | None:
        """When this was deleted; None while it is a flex node, and when it never was one."""
        ...

    async def on_node_removed(self, cluster: str, node: str) -> None:
        """Its Node was taken out of the cluster, because the machine will not do it."""
        ...

    async def on_token_csr(self, cluster: str, node: str, token_id: str, csr: str) -> bool:
        """The first request for a certificate is accepted, and not yet approved: the config URL must die now."""
        ...

    async def on_csr_denied(self, cluster: str, node: str, token_id: str, csr: str, why: str) -> None:
        """A request was denied. Where its token is unknown, `node` is what it wanted to be, if anything.

        `token_id` is empty where none was used.
        """
        ...

    async def on_token_certificate(self, cluster: str, node: str, token_id: str, csr: str) -> None:
        """It is told before the token is revoked."""
        ...

    async def on_token_failed(self, cluster: str, node: str, token_id: str, why: str) -> None:
        """The token ends without a certificate: its request was refused, the signer gave up, or it took too long.

        It is told before the token is revoked; and only of the node's current token.
        """
        ...

    async def on_node_observed(self, cluster: str, node: str, ready: dict[str, Any] | None) -> None:
        """The Ready condition of a flex node, with its kubelet's version as `kubeletVersion`; None: it is gone."""
        ...

    async def on_nodes_listed(self, cluster: str, names: frozenset[str]) -> None:
        """All Nodes that there are just now: whoever is not among them is gone, since whenever."""
        ...

    async def on_cluster_facts(self, cluster: str, facts: ClusterFacts) -> None:
        """What nodes must know of it: version, CA, DNS address, API server. It is told at every look, new or not."""
        ...
