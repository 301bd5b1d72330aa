"""Clusters that are only facts and tokens in memory, in place of connections to real ones."""

from __future__ import annotations

import secrets
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from aks_flex_node.errors import ClusterError
from aks_flex_rp.arm.ids import ClusterId
from aks_flex_rp.clusters.bootstrap_tokens import MintedToken
from aks_flex_rp.clusters.facts import ClusterFacts
from aks_flex_rp.nodes.context import ClusterInfo
from tests.unit.rp.auth.token_issuer import TENANT

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from aks_flex_rp.clusters.client import KubeClient
    from aks_flex_rp.clusters.node_controller import NodeMachine
    from aks_flex_rp.join_state import ClusterAccess

SUBSCRIPTION = "12345678-1234-1234-1234-123456789abc"
STRANGE_SUBSCRIPTION = "99999999-1234-1234-1234-123456789abc"
SEED = ClusterId(SUBSCRIPTION, "my-rg", "my-cluster")  # as old as the versions in the examples of the design document
PLANT = ClusterId(SUBSCRIPTION, "Edge", "Plant")
NEIGHBOUR = ClusterId(SUBSCRIPTION, "Edge", "Neighbour")
ISLAND = ClusterId(STRANGE_SUBSCRIPTION, "Edge", "Island")  # without Entra ID
NOWHERE = ClusterId(SUBSCRIPTION, "Edge", "Nowhere")  # a cluster that was not added


CLUSTER_VERSION = "1.34.4"


def facts(ca_cert_data: str, version: str = CLUSTER_VERSION, *, aad: bool = True) -> ClusterFacts:
    return ClusterFacts(
        version=version,
        server_url="https://api.plant.example:443",
        ca_cert_data=ca_cert_data,
        dns_service_ip="10.0.0.10",
        location="westeurope",
        tenant_id=TENANT,
        aad=aad,
    )


def known_clusters(ca_cert_data: str) -> list[ClusterInfo]:
    found = {each: facts(ca_cert_data) for each in (SEED, PLANT, NEIGHBOUR, ISLAND)}
    found[SEED] = facts(ca_cert_data, "1.31.2")
    found[ISLAND] = facts(ca_cert_data, aad=False)
    return [
        ClusterInfo(each, known, key_audience=f"aks-flex-rp:of-{each.name.lower()}") for each, known in found.items()
    ]


@dataclass
class FakeClusters:
    """Simulated clusters. `tokens` are a cluster's Secrets by ID; `away` makes it unavailable."""

    known: dict[str, ClusterInfo]
    tokens: dict[str, tuple[str, MintedToken]] = field(default_factory=dict)
    given: dict[str, ClusterAccess] = field(default_factory=dict)  # access that role bindings would give to nodes
    away: bool = False
    machines: dict[str, NodeMachine] = field(default_factory=dict)  # what Nodes would say of their machines
    marked: dict[str, str] = field(default_factory=dict)  # machines in the annotations of Nodes

    @classmethod
    def of(cls, clusters: Iterable[ClusterInfo]) -> FakeClusters:
        return cls({each.id.key: each for each in clusters})

    @contextmanager
    def being_away(self) -> Iterator[None]:
        self.away = True
        try:
            yield
        finally:
            self.away = False

    @property
    def count(self) -> int:
        return len(self.known)

    def client(self, key: str) -> KubeClient:
        raise ClusterError("cluster-away", f"{key} has no API server.", "")

    async def start(self) -> None:
        return

    async def stop(self) -> None:
        return

    async def find(self, key: str) -> ClusterInfo | None:
        return self.known.get(key)

    async def is_there(self, key: str) -> bool:
        return key in self.known

    async def mint(self, key: str, node: str, expires: float) -> MintedToken:
        if self.away:
            raise ClusterError("cluster-away", f"{key} does not answer.", "Try again.", retryable=True)
        token = MintedToken(secrets.token_hex(3), secrets.token_hex(8), datetime.fromtimestamp(expires, timezone.utc))
        self.tokens[token.id] = (node, token)
        return token

    async def revoke(self, key: str, token: str) -> bool:
        if self.away or key not in self.known:
            return False
        self.tokens.pop(token, None)
        return True

    async def grant(self, key: str, node: str, access: ClusterAccess) -> None:
        if self.away:
            raise ClusterError("cluster-away", f"{key} does not answer.", "Try again.", retryable=True)
        self.given[node] = access

    async def withdraw(self, key: str, node: str) -> bool:
        if self.away or key not in self.known:
            return False
        self.given.pop(node, None)
        return True

    async def node_machine(self, key: str, node: str) -> NodeMachine | None:
        if self.away or key not in self.known:
            raise ClusterError("cluster-unreachable", "The cluster does not respond.", "", retryable=True)
        return self.machines.get(node)

    async def mark_machine(self, key: str, node: str, machine_id: str) -> None:
        if not self.away and key in self.known:
            self.marked[node] = machine_id
