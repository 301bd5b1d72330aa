"""Tests of the configuration of nodes after their cluster has changed, on a real store."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from aks_flex_rp.cluster_registry import cluster_info
from aks_flex_rp.nodes.cluster_sync import SYNC_PENDING, ClusterSync
from aks_flex_rp.resource.config_generator import AgentEndpoints
from tests.service.rp.api.fake_clusters import PLANT
from tests.service.rp.nodes.harness import FACTS

if TYPE_CHECKING:
    from tests.service.rp.nodes.harness import Site

NEW_CA = replace(FACTS, ca_cert_data="bmV3")
OLD = AgentEndpoints("https://flex.example", "Q0E=")
NEW = replace(OLD, url="https://new.example")


async def put_nodes(site: Site) -> None:
    """Creates two nodes: one with a version, the other without."""
    await site.put("given", versions={"kubernetes": "1.33.1"})
    await site.put("free")


async def put_managed(site: Site) -> None:
    """Creates a managed node with a service that has no configured endpoints."""
    identity = {"clientId": "11111111-2222-3333-4444-555555555555"}
    auth = {"method": "managedIdentity", "managedIdentity": identity}
    await site.put("managed", continuousMonitoring=True, azureAuth=auth)


async def configs(site: Site) -> dict[str, Any]:
    return {name: (await site.node(name)).config for name in ("given", "free")}


async def test_new_cluster_ca_creates_new_config_version_of_every_node(site: Site) -> None:
    await put_nodes(site)
    before = [await site.node(name) for name in ("given", "free")]

    await ClusterSync(site.context).sync(PLANT.key, NEW_CA)

    for old in before:
        new = await site.node(old.key)
        assert new.config["node"]["kubelet"]["caCertData"] == "bmV3"
        assert (new.version > old.version, new.etag != old.etag) == (True, True)
    [event] = await site.store.audit(what="cluster.changed")
    assert event.detail == {"ca_cert_data": ["b2xk", "bmV3"]}


@pytest.mark.parametrize(("follow", "expected"), [(False, "1.33.1"), (True, "1.34.4")])
async def test_new_cluster_version_is_applied_only_to_unpinned_nodes_if_enabled(
    site: Site, follow: bool, expected: str
) -> None:
    await site.add_cluster(follow_version=follow)
    await put_nodes(site)

    await ClusterSync(site.context).sync(PLANT.key, replace(FACTS, version="1.34.4"))

    versions = {name: each["kubernetes"]["version"] for name, each in (await configs(site)).items()}
    assert versions == {"given": "1.33.1", "free": expected}


async def test_interrupted_cluster_sync_is_completed_by_next_run(site: Site) -> None:
    await put_nodes(site)
    cluster = await site.store.cluster(PLANT.key)
    assert cluster
    half = {**cluster.facts, **NEW_CA.to_document(), SYNC_PENDING: True}
    await site.store.put_cluster(replace(cluster, facts=half, version=2), 1)

    await ClusterSync(site.context).sync(PLANT.key, NEW_CA)
    assert (await configs(site))["free"]["node"]["kubelet"]["caCertData"] == "bmV3"
    await ClusterSync(site.context).sync(PLANT.key, NEW_CA)  # finds nothing to do and records its completion
    cluster = await site.store.cluster(PLANT.key)
    assert cluster
    assert cluster.facts[SYNC_PENDING] is False


async def test_changed_provider_endpoints_update_only_managed_nodes(site: Site) -> None:
    await site.put("free")
    await put_managed(site)
    before = [await site.node(name) for name in ("managed", "free")]

    replica = ClusterSync(replace(site.context, endpoints=OLD))
    for _ in range(3):
        await replica.sync(PLANT.key, FACTS)

    managed = await site.node("managed")
    assert managed.config["provider"] == {"url": "https://flex.example", "caCertData": "Q0E="}
    assert managed.version > before[0].version
    assert (await site.node("free")).version == before[1].version
    assert await site.store.audit(what="cluster.changed") == ()
    assert len(await site.store.audit(what="update")) == 1


async def test_replicas_with_different_endpoints_do_not_rewrite_nodes_forever(site: Site) -> None:
    await put_managed(site)
    replicas = [ClusterSync(replace(site.context, endpoints=endpoints)) for endpoints in (OLD, NEW)]
    for replica in replicas * 3:
        await replica.sync(PLANT.key, FACTS)

    assert (await site.node("managed")).config["provider"]["url"] == NEW.url
    assert len(await site.store.audit(what="update")) == 2
    noted = await site.store.cluster(PLANT.key)
    assert noted
    assert cluster_info(noted).endpoints == NEW  # also for later writes


async def test_cluster_sync_keeps_allow_downgrade(site: Site) -> None:
    await site.put("free", downgrade=True)

    await ClusterSync(site.context).sync(PLANT.key, NEW_CA)

    assert (await site.node("free")).config["updatePolicy"] == {"allowDowngrade": True}
