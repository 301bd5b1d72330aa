"""Interface between the cluster controllers and the rest of the service: their events and their queries.

An event may be delivered more than once, by several replicas or after a restart. An event that could not be
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
        """Returns whether this is the node's current bootstrap token."""
        ...

    async def is_flex_node(self, cluster: str, node: str) -> bool:
        """Returns whether this is a flex node."""
        ...

    async def granted_access(self, cluster: str, node: str) -> ClusterAccess | None:
        """Returns the access that the node's identity was granted, or None."""
        ...

    async def access_method(self, cluster: str, node: str) -> AccessMethod | None:
        """Returns how the node joins with its identity, or None if it uses a token or is not a flex node."""
        ...

    async def all_granted_access(self, cluster: str) -> dict[str, ClusterAccess]:
        """Returns the granted access of all flex nodes of the cluster that have any."""
        ...

    async def on_access_withdrawn(self, cluster: str, node: str) -> None:
        """Handles that the access of a node's identity was removed, because no node uses it."""
        ...

    async def on_identity_csr(self, cluster: str, node: str, identity: str, csr: str) -> bool:
        """Handles a valid certificate request of the node's identity.

        Returns False if the node has another identity.
        """
        ...

    async def on_identity_certificate(self, cluster: str, node: str, csr: str) -> None:
        """Handles that the certificate requested by the identity was issued."""
        ...

    async def api_server_urls(self, cluster: str) -> frozenset[str]:
        """Returns additional URLs of the API server that flex nodes use."""
        ...

    async def desired_taints(self, cluster: str, node: str) -> DesiredTaints | None:
        """Returns the desired taints of a flex node, or None if this is not a flex node."""
        ...

    async def deletion_time(self, cluster: str, node: str) -> float | None:
        """Returns when the node was deleted, or None if it exists or never existed."""
        ...

    async def on_node_removed(self, cluster: str, node: str) -> None:
        """Handles that the controller deleted the Node, because its machine did not."""
        ...

    async def on_token_csr(self, cluster: str, node: str, token_id: str, csr: str) -> bool:
        """Handles the first valid request of a token, before its approval. The config URL must be revoked now.

        Returns False if the token is not the node's current one.
        """
        ...

    async def on_csr_denied(self, cluster: str, node: str, token_id: str, csr: str, why: str) -> None:
        """Handles a denied request.

        If the token is unknown, `node` is the node that the request names, if any. `token_id` may be
        empty.
        """
        ...

    async def on_token_certificate(self, cluster: str, node: str, token_id: str, csr: str) -> None:
        """Handles that the certificate was issued. Called before the token is revoked."""
        ...

    async def on_token_failed(self, cluster: str, node: str, token_id: str, why: str) -> None:
        """Handles a token without a certificate: the request was denied, signing failed, or it timed out.

        Called before the token is revoked, and only for the node's current token.
        """
        ...

    async def on_node_observed(self, cluster: str, node: str, ready: dict[str, Any] | None) -> None:
        """Handles the Ready condition of a flex node, with `kubeletVersion` and `machine` (a MachineIdentity).

        None if its Node was deleted.
        """
        ...

    async def on_nodes_listed(self, cluster: str, names: frozenset[str]) -> None:
        """Handles the list of all Nodes. A node that is not in it has no Node."""
        ...

    async def on_cluster_facts(self, cluster: str, facts: ClusterFacts) -> None:
        """Handles the facts of the cluster: version, CA, DNS address, API server. Called after every read."""
        ...
