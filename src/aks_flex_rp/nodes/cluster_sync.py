"""Regenerates the configuration of a cluster's nodes when the cluster changes:

CA, address, DNS, version, endpoints.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from aks_flex_rp.nodes import join_rules
from aks_flex_rp.resource import config_generator
from aks_flex_rp.resource.config_generator import AgentEndpoints
from aks_flex_rp.resource.properties import Properties
from aks_flex_rp.store.model import AuditAction, AuditEvent, Conflict

if TYPE_CHECKING:
    from aks_flex_rp.clusters.facts import ClusterFacts
    from aks_flex_rp.nodes.context import ClusterInfo, NodeContext
    from aks_flex_rp.store.model import Cluster, Document, Node

AT_ONCE = 200
SYNC_ACTOR = "cluster watch"  # caller of automatic changes in the audit log
# Stored with the cluster while its nodes are updated one by one and may not all have the new facts.
SYNC_PENDING = "renewing"
# Stored with the cluster: the endpoints that its nodes receive, from any replica.
ENDPOINTS = "ways"


@dataclass(frozen=True)
class ClusterSync:
    context: NodeContext
    # Clusters whose endpoints this service has set. It does so once, at start: replicas with different settings would
    # otherwise overwrite each other's endpoints forever.
    synced: set[str] = field(default_factory=set)

    async def sync(self, key: str, facts: ClusterFacts) -> None:
        """Updates all nodes after a change of the CA, address, DNS server or endpoints, and after a new version
        those without a version of their own.
        """
        store = self.context.store
        cluster, known = await store.cluster(key), await self.context.clusters.find(key)
        if cluster is None or known is None:
            return
        before, known_endpoints = type(facts).from_document(cluster.facts), self._endpoints(cluster)
        differs = before != facts or known_endpoints != cluster.facts.get(ENDPOINTS)
        if differs:
            try:
                cluster = await self._record(
                    cluster, {**facts.to_document(), ENDPOINTS: known_endpoints, SYNC_PENDING: True}
                )
            except Conflict:
                return  # another replica or an administrator changed the cluster: checked again at the next sync
        self.synced.add(key)
        if before != facts:
            old, new = before.to_document(), facts.to_document()
            differences = {name: [old.get(name), new.get(name)] for name in new if old.get(name) != new.get(name)}
            await store.record(
                AuditEvent(
                    self.context.now(), SYNC_ACTOR, AuditAction.CLUSTER_CHANGED, cluster.id, detail=differences
                )
            )
        if not differs and not cluster.facts.get(SYNC_PENDING):
            return
        # A concurrent write with the old facts may still follow, so the sync ends only when nothing was left to
        # update.
        if not await self._sync_nodes(
            replace(known, facts=facts, endpoints=AgentEndpoints.from_document(known_endpoints))
        ):
            with suppress(Conflict):
                await self._record(cluster, {SYNC_PENDING: False})

    def _endpoints(self, cluster: Cluster) -> Document:
        recorded: Document | None = cluster.facts.get(ENDPOINTS)
        return (
            self.context.endpoints.to_document() if recorded is None or cluster.key not in self.synced else recorded
        )

    async def _record(self, cluster: Cluster, facts: Document) -> Cluster:
        recorded = replace(cluster, facts={**cluster.facts, **facts}, version=cluster.version + 1)
        await self.context.store.put_cluster(recorded, cluster.version)
        return recorded

    async def _sync_nodes(self, cluster: ClusterInfo) -> bool:
        """Updates all nodes of the cluster. Returns whether any node had to be updated."""
        renewed = False
        async for node in self.context.store.each_node(cluster.key, at_once=AT_ONCE):
            renewed |= await self.sync_node(cluster, node)
        return renewed

    async def sync_node(self, cluster: ClusterInfo, node: Node) -> bool:
        """Generates the configuration of a node again. Returns whether it changed."""
        properties = Properties(node.effective)
        version = cluster.facts.version if cluster.follow_version else node.config["kubernetes"]["version"]
        chosen = config_generator.effective_versions(
            properties, version, config_generator.config_versions(node.config)
        )
        downgrade = config_generator.allows_downgrade(node.config)
        endpoints = self.context.endpoints_for(cluster)
        config = config_generator.generate_config(
            properties, cluster.id, cluster.facts, node.key, chosen, endpoints=endpoints, downgrade=downgrade
        )
        if config == node.config:
            return False
        number = max(int(self.context.now()), node.version + 1)
        document = join_rules.stored_desired(node).document()
        changed = replace(node, config=config, properties=document, version=number, etag=f'"{number}"')
        renewed = join_rules.record_delivered(changed, node)
        event = AuditEvent(
            self.context.now(),
            SYNC_ACTOR,
            AuditAction.UPDATE,
            cluster.id.node(node.name),
            detail={"configVersion": str(number)},
        )
        with suppress(Conflict):  # another process is writing the node: checked again at the next sync
            await self.context.store.put_node(renewed, node.etag, [event])
        return True
