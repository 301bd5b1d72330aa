"""What the kubelet joins with: the cluster's CA, and a token that buys it a certificate of its own."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from aks_flex_node.agent.config.derived import ca_certificate, token
from aks_flex_node.agent.engine.component import Component
from aks_flex_node.agent.engine.resources import Directory, File, Found, Spec

if TYPE_CHECKING:
    from aks_flex_node.agent.config.models import NodeConfig
    from aks_flex_node.agent.machine import Machine

NAME = "aks-flex-node"


def desired(config: NodeConfig, machine: Machine) -> Spec:  # noqa: ARG001
    places, secret = config.paths.kubernetes, token(config)
    files: list[File | Found] = [File(f"{places.certs_dir}/ca.crt", ca_certificate(config) or b"")]
    path = f"{places.kubelet_dir}/bootstrap-kubeconfig"
    if secret:
        files.append(File(path, bootstrap_kubeconfig(config, secret.reveal()), 0o600, secret=True))
    elif config.azure.bootstrap_token:
        files.append(Found(path))  # its token's file is gone; what it was used for stays as it is
    return Spec(
        (
            Directory(places.config_dir),
            Directory(places.certs_dir),
            Directory(places.kubelet_dir, 0o755, ours=True),
            *files,
        )
    )


def bootstrap_kubeconfig(config: NodeConfig, secret: str) -> bytes:
    cluster = {
        "server": config.node.kubelet.server_url,
        "certificate-authority": f"{config.paths.kubernetes.certs_dir}/ca.crt",
    }
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": NAME, "cluster": cluster}],
        "users": [{"name": NAME, "user": {"token": secret}}],
        "contexts": [{"name": NAME, "context": {"cluster": NAME, "user": NAME}}],
        "current-context": NAME,
    }
    return (json.dumps(document, indent=2) + "\n").encode()


COMPONENT = Component("credentials", "cluster CA and bootstrap credentials", desired)
