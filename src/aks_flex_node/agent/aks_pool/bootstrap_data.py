"""The bootstrap data of a flex node pool, which `listBootstrapData` returns: parses it, and converts it to a
configuration document. Pure functions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aks_flex_node.agent.aks_pool.machine_document import object_at
from aks_flex_node.agent.config.pool_names import server_url, split_labels
from aks_flex_node.errors import FlexError
from aks_flex_node.lean_dataclass import frozen
from aks_flex_node.settings.secret import Secret

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aks_flex_node.agent.aks_pool.pool_ids import PoolId


@frozen
class BootstrapData:
    """The pool's settings for nodes that join, and the token, which is valid for one hour."""

    token: Secret
    settings: Mapping[str, Any]  # a configuration document without the token


def parse_bootstrap_data(document: Mapping[str, Any], pool: PoolId) -> BootstrapData:
    """Parses a response. Ignores fields that later versions of the API may add. Raises FlexError
    `aks-pool-data-invalid` if the data is not sufficient for a join.
    """
    azure, node = object_at(document, "azure"), object_at(document, "node")
    components, networking = object_at(document, "components"), object_at(document, "networking")
    kubelet = object_at(node, "kubelet")
    token = _text(object_at(azure, "bootstrapToken"), "token")
    required = {
        "azure.bootstrapToken.token": token,
        "node.kubelet.clusterFQDN": _text(kubelet, "clusterFQDN"),
        "node.kubelet.caCertData": _text(kubelet, "caCertData"),
        "components.kubernetes": _text(components, "kubernetes"),
    }
    if missing := [name for name, value in required.items() if not value]:
        raise data_invalid_error(pool, f"it has no {', '.join(missing)}")
    # The section `node`. Labels that only the cluster can set are left to the cluster.
    dns = _text(networking, "dnsServiceIP")
    labels, _ = split_labels(object_at(node, "labels"))
    taints, most = node.get("taints"), node.get("maxPods")
    settings = {
        "azure": {"targetCluster": {"resourceId": pool.cluster_id}, "targetAgentPoolName": pool.pool},
        "kubernetes": {"version": components["kubernetes"]},
        **{name: {"version": _text(components, name)} for name in ("containerd", "runc") if _text(components, name)},
        **({"cni": {"version": cni}} if (cni := _text(networking, "cniVersion")) else {}),
        "node": {
            **({"maxPods": most} if most is not None else {}),
            **({"labels": labels} if labels else {}),
            **({"taints": [str(each) for each in taints]} if isinstance(taints, list) and taints else {}),
            "kubelet": {
                "serverURL": server_url(_text(kubelet, "clusterFQDN")),
                "caCertData": _text(kubelet, "caCertData"),
                **({"dnsServiceIP": dns} if dns else {}),
            },
        },
    }
    return BootstrapData(Secret(token), settings)


def _text(parent: Mapping[str, Any], name: str) -> str:
    value = parent.get(name)
    return value.strip() if isinstance(value, str) else ""


def data_invalid_error(pool: PoolId, cause: str) -> FlexError:
    return FlexError(
        "aks-pool-data-invalid",
        f"The response for the bootstrap data of {pool} cannot be used: {cause}.",
        "Check `azure.resourceManager` and the proxy: another server may have answered. Run "
        f"`{pool.bootstrap_data_command}` to see what AKS returns.",
        retryable=True,
    )
