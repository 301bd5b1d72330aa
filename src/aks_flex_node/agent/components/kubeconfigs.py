"""Kubeconfigs of a kubelet: the same cluster, and one of several ways to show who it is. Pure."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aks_flex_node.agent.config.models import NodeConfig

NAME = "aks-flex-node"


def kubeconfig(config: NodeConfig, user: dict[str, Any]) -> bytes:
    cluster = {
        "server": config.node.kubelet.server_url,
        "certificate-authority": f"{config.paths.kubernetes.certs_dir}/ca.crt",
    }
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": NAME, "cluster": cluster}],
        "users": [{"name": NAME, "user": user}],
        "contexts": [{"name": NAME, "context": {"cluster": NAME, "user": NAME}}],
        "current-context": NAME,
    }
    return (json.dumps(document, indent=2) + "\n").encode()


def by_azure(config: NodeConfig) -> dict[str, Any]:
    """A user who shows a token of the node's Azure identity, which a program fetches when it is needed."""
    return {
        "exec": {
            "apiVersion": "client.authentication.k8s.io/v1",
            "command": token_script(config),
            "interactiveMode": "Never",
            "provideClusterInfo": False,
        }
    }


def token_script(config: NodeConfig) -> str:
    return f"{config.paths.kubernetes.kubelet_dir}/token.sh"
