"""Writes a cluster and many nodes directly into a store, and creates the polls of these nodes."""

from __future__ import annotations

import asyncio
import json
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from aks_flex_node.api.contract import API_VERSION
from aks_flex_rp.arm.ids import ClusterId
from aks_flex_rp.clusters.facts import ClusterFacts
from aks_flex_rp.join_state import JoinState
from aks_flex_rp.nodes.identity_ownership import node_identity
from aks_flex_rp.resource import config_generator, validation
from aks_flex_rp.resource.effective import merge_properties
from aks_flex_rp.resource.properties import Properties
from aks_flex_rp.resource.rules import ValidationContext
from aks_flex_rp.store.model import Cluster, Node, PoolMembership
from aks_flex_rp.store.pool_model import Pool, PoolRevision
from tests.unit.rp.auth.token_issuer import TENANT

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from aks_flex_rp.store.base import Store
    from tests.service.rp.api.tenants import Tenant

CLUSTER = ClusterId("12345678-1234-1234-1234-123456789abc", "edge", "plant")
FACTS = ClusterFacts(
    "1.34.4", "https://api.plant.example:443", "Q0E=", "10.0.0.10", location="westeurope", tenant_id=TENANT, aad=True
)
TOGETHER = 1000
VERSION = 1_700_000_000
HOST = "provider.example"


def name_of(number: int) -> str:
    return f"edge-{number:06}"


def principal_of(number: int) -> str:
    return str(uuid.UUID(int=0xEDE0_0000_4000_8000_0000_0000_0000 + number))


def body(number: int, label: str = "first") -> dict[str, object]:
    auth = {"method": "arc", "arc": {"principalId": principal_of(number)}}
    return {"properties": {"continuousMonitoring": True, "azureAuth": auth, "nodeConfig": {"labels": {"is": label}}}}


def node(number: int, facts: ClusterFacts = FACTS) -> Node:
    """Returns a node as a PUT creates it."""
    name = name_of(number)
    desired = validation.validate_body(body(number), name, ValidationContext(facts.version, facts.aad))
    if isinstance(desired, list):
        raise SystemExit(f"The node is invalid: {desired}")
    chosen = config_generator.effective_versions(desired.properties, facts.version)
    config = config_generator.generate_config(desired.properties, CLUSTER, facts, name, chosen)
    return Node(
        cluster=CLUSTER.key,
        key=name,
        name=name,
        version=VERSION,
        etag=f'"{VERSION}"',
        properties=desired.document(),
        config=config,
        join=JoinState.from_document({"state": "Joined"}),
        identity=node_identity(desired.properties, CLUSTER, facts.tenant_id, name),
        created=float(VERSION),
    )


def pool_member(number: int, pool: str, template: dict[str, Any]) -> Node:
    """Returns a node of the first revision of a pool, with a label of its own."""
    made = node(number)
    own = {"poolName": pool, "nodeConfig": {"labels": {"rack": str(number % 40)}}}
    effective = merge_properties(template, own)
    identity = node_identity(Properties(effective), CLUSTER, FACTS.tenant_id, made.key)
    return replace(made, properties=own, identity=identity, pool=PoolMembership(pool, 1, effective))


async def fill(
    store: Store,
    nodes: range,
    facts: ClusterFacts = FACTS,
    *,
    make: Callable[[int], Node] | None = None,
    pools: Mapping[str, dict[str, Any]] | None = None,
    heard: Callable[[int], float] | None = None,
) -> None:
    """Fills a store. The cluster is not reachable; the service logs this and serves the nodes.

    `pools` are the templates by the name of the pool; `heard` returns when a node has polled.
    """
    await store.start()
    try:
        if await store.cluster(CLUSTER.key) is None:
            await store.put_cluster(Cluster(CLUSTER.key, str(CLUSTER), facts.to_document(), b""), None)
        for name, template in (pools or {}).items():
            pool = Pool(CLUSTER.key, name, template, created=1.0)
            await store.put_pool(pool, None, PoolRevision(CLUSTER.key, pool.key, 1, 1.0, template))
        for first in range(nodes.start, nodes.stop, TOGETHER):
            numbers = range(first, min(first + TOGETHER, nodes.stop))
            some = {number: make(number) if make else node(number, facts) for number in numbers}
            await asyncio.gather(*(store.put_node(each, None) for each in some.values()))
            if heard:
                await store.seen([(each.cluster, each.key, heard(number)) for number, each in some.items()])
    finally:
        await store.stop()


def token(tenant: Tenant, number: int) -> str:
    """Returns a token of about the size of Entra ID's tokens for Arc machines."""
    principal = principal_of(number)
    machine = f"/subscriptions/{CLUSTER.subscription}/resourcegroups/edge/providers/Microsoft.HybridCompute/machines"
    more = {"xms_mirid": f"{machine}/{name_of(number)}", "rh": "1.AAAA" + "x" * 120, "uti": "y" * 22, "aio": "z" * 80}
    key = "curve" if "curve" in tenant.issuer.keys else "first"
    return tenant.issuer.sign(
        key, "ES256" if key == "curve" else "RS256", oid=principal, sub=principal, appid=principal, **more
    )


def poll(number: int, bearer: str, wait: int = 0) -> str:
    lines = [
        f"GET {CLUSTER.node(name_of(number))}?api-version={API_VERSION} HTTP/1.1",
        f"Host: {HOST}",
        "User-Agent: aks-flex-node/0.1",
        "Accept: application/json",
        f"Authorization: Bearer {bearer}",
        f'If-None-Match: "{VERSION}"',
    ]
    if wait:
        lines.append(f"Prefer: wait={wait}")
    return "\r\n".join((*lines, "", ""))


def put(number: int, bearer: str, label: str) -> str:
    content = json.dumps(body(number, label))
    lines = (
        f"PUT {CLUSTER.node(name_of(number))}?api-version={API_VERSION} HTTP/1.1",
        f"Host: {HOST}",
        f"Authorization: Bearer {bearer}",
        "Content-Type: application/json",
        f"Content-Length: {len(content)}",
    )
    return "\r\n".join((*lines, "", content))


def polls(tenant: Tenant, numbers: Sequence[int], wait: int = 0) -> list[str]:
    return [poll(number, token(tenant, number), wait) for number in numbers]
