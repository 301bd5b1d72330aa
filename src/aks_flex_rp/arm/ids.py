"""ARM IDs of clusters and their flex nodes. They compare case-insensitively and are returned as written."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

PROVIDER = "Microsoft.ContainerService"
NODE_TYPE = f"{PROVIDER}/managedClusters/flexNodeConfig"
POOL_TYPE = f"{PROVIDER}/managedClusters/flexNodePools"

_CLUSTER = re.compile(
    r"/subscriptions/(?P<subscription>[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})"
    r"/resourcegroups/(?P<group>[-\w.()]{0,89}[-\w()])"
    r"/providers/microsoft\.containerservice/managedclusters/(?P<cluster>[a-z0-9](?:[-_a-z0-9]{0,61}[a-z0-9])?)",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class ClusterId:
    subscription: str
    group: str
    name: str

    def __str__(self) -> str:
        group = f"/subscriptions/{self.subscription}/resourceGroups/{self.group}"
        return f"{group}/providers/{PROVIDER}/managedClusters/{self.name}"

    @cached_property
    def key(self) -> str:
        """Returns the key of the cluster in the store."""
        return str(self).lower()

    def node(self, name: str) -> str:
        """Returns the ID of a flex node of this cluster."""
        return f"{self}/flexNodeConfig/{name}"

    def pool(self, name: str) -> str:
        """Returns the ID of a pool of flex nodes of this cluster."""
        return f"{self}/flexNodePools/{name}"


def parse_cluster_id(text: str) -> ClusterId | None:
    """Parses the ID of a cluster. Returns None if the text is not one."""
    found = _CLUSTER.fullmatch(text.rstrip("/"))
    return ClusterId(found["subscription"], found["group"], found["cluster"]) if found else None


def record_resource(identity: tuple[str, ...]) -> str:
    """Returns the resource ID of a stored cluster (its key), or of a node (the key of its cluster, and its own).

    The identity of a pool and of its revisions has the name of the collection after the cluster.
    """
    cluster = parse_cluster_id(identity[0])
    if cluster and len(identity) > 2:
        return cluster.pool(identity[2])
    return cluster.node(identity[1]) if cluster and len(identity) > 1 else identity[0]
