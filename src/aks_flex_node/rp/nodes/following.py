"""A cluster that is not what it was: its nodes get a new configuration, as far as its policy says."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from aks_flex_node.rp.resource import configs
from aks_flex_node.rp.resource.models import Properties
from aks_flex_node.rp.resource.ways import Ways
from aks_flex_node.rp.store.store import Conflict, Event

if TYPE_CHECKING:
    from aks_flex_node.rp.clusters.facts import ClusterFacts
    from aks_flex_node.rp.nodes.around import Known, Workshop
    from aks_flex_node.rp.store.store import Cluster, Document, Node

AT_ONCE = 200
WATCH = "cluster watch"  # who does what nobody asked for
# Nodes get the new facts one by one. As long as this stands with the cluster, they may not all have them.
RENEWING = "renewing"
# Also with the cluster: the ways that its nodes are given, by whichever replica.
WAYS = "ways"


@dataclass(frozen=True)
class Following:
    shop: Workshop
    # Clusters that this service has told its ways. It does so once, when it begins: replicas whose settings differ
    # would otherwise write the same nodes anew for ever, each its own way.
    told: set[str] = field(default_factory=set)

    async def follow(self, key: str, facts: ClusterFacts) -> None:
        """A new CA, address or DNS server reaches every node, as do new ways; a new version those that follow it."""
        store = self.shop.store
        cluster, known = await store.cluster(key), await self.shop.clusters.find(key)
        if cluster is None or known is None:
            return
        before, ways = type(facts).from_document(cluster.facts), self._ways(cluster)
        differs = before != facts or ways != cluster.facts.get(WAYS)
        if differs:
            try:
                cluster = await self._note(cluster, {**facts.to_document(), WAYS: ways, RENEWING: True})
            except Conflict:
                return  # another replica saw it first, or a person changed the cluster: the next look tells
        self.told.add(key)
        if before != facts:
            told = _differences(before, facts)
            await store.record(Event(self.shop.now(), WATCH, "cluster.changed", cluster.id, detail=told))
        if not differs and not cluster.facts.get(RENEWING):
            return
        # A write that was under way with the old facts may come after us: so it is done when there was nothing to do.
        if not await self._renew(replace(known, facts=facts, ways=Ways.from_document(ways))):
            with suppress(Conflict):
                await self._note(cluster, {RENEWING: False})

    def _ways(self, cluster: Cluster) -> Document:
        noted: Document | None = cluster.facts.get(WAYS)
        return self.shop.ways.to_document() if noted is None or cluster.key not in self.told else noted

    async def _note(self, cluster: Cluster, facts: Document) -> Cluster:
        noted = replace(cluster, facts={**cluster.facts, **facts}, version=cluster.version + 1)
        await self.shop.store.put_cluster(noted, cluster.version)
        return noted

    async def _renew(self, cluster: Known) -> bool:
        """Whether any node was not as it should be."""
        after, renewed = "", False
        while True:
            page = await self.shop.store.nodes(cluster.id.key, after, AT_ONCE)
            for node in page.nodes:
                renewed |= await self._renew_node(cluster, node)
            if page.after is None:
                return renewed
            after = page.after

    async def _renew_node(self, cluster: Known, node: Node) -> bool:
        properties = Properties.model_validate(node.properties)
        version = cluster.facts.version if cluster.follow_version else node.config["kubernetes"]["version"]
        chosen = configs.effective_versions(properties, version, configs.versions_in(node.config))
        downgrade = configs.allows_downgrade(node.config)
        ways = self.shop.ways_to(cluster)
        config = configs.config(
            properties, cluster.id, cluster.facts, node.key, chosen, ways=ways, downgrade=downgrade
        )
        if config == node.config:
            return False
        number = max(int(self.shop.now()), node.version + 1)
        renewed = replace(node, config=config, version=number, etag=f'"{number}"')
        event = Event(
            self.shop.now(),
            WATCH,
            "update",
            cluster.id.node(node.name),
            detail={"configVersion": str(number)},
        )
        with suppress(Conflict):  # others are writing it: the next look sees what became of it
            await self.shop.store.put_node(renewed, node.etag, [event])
        return True


def _differences(before: ClusterFacts, after: ClusterFacts) -> dict[str, object]:
    old, new = before.to_document(), after.to_document()
    return {name: [old.get(name), new.get(name)] for name in new if old.get(name) != new.get(name)}
