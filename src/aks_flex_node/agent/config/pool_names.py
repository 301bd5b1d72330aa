"""Values in the bootstrap data of an AKS pool, which `az aks nodepool get-bootstrap-data` prints. Microsoft's agent
reads it, and configuration files can use its names for the settings of this agent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aks_flex_node.api.kubernetes_rules import own_label

if TYPE_CHECKING:
    from collections.abc import Mapping


def is_bootstrap_data(document: Mapping[str, object]) -> bool:
    """Returns whether a configuration document is bootstrap data: only that has the sections of other names."""
    return isinstance(document.get("components"), dict) or isinstance(document.get("networking"), dict)


def split_labels(labels: Mapping[str, object]) -> tuple[dict[str, str], list[str]]:
    """Returns the labels of bootstrap data that a node can set on itself, and the names of those that it leaves to
    the cluster.
    """
    own = {str(key): str(value) for key, value in labels.items() if own_label(str(key)) is None}
    return own, [str(key) for key in labels if str(key) not in own]


def convert_pool_value(name: str, value: object) -> object:
    """Converts the value of a setting with one of their names to a value of ours."""
    if not isinstance(value, str):
        return value
    if name == "node.kubelet.clusterFQDN":
        return server_url(value)
    return value.rstrip("/") if name == "azure.resourceManagerEndpoint" else value


def server_url(fqdn: str) -> str:
    """Returns the URL of the API server. Keeps a port or a scheme that is already there."""
    address = fqdn.strip().rstrip("/")
    if not address or "://" in address:
        return address
    return f"https://{address}" if address.rpartition(":")[2].isdigit() else f"https://{address}:443"
