"""The CNI component: plugins, and a bridge network for the pods of this node until the cluster installs its own.

The network uses the pod CIDR that the cluster assigned to this node. Its file sorts last in the directory, and
containerd uses the first one, so the configuration of the cluster's network plugin takes precedence.
"""

from __future__ import annotations

import ipaddress
import json
from typing import TYPE_CHECKING

from aks_flex_node.agent.artifacts import ArtifactFile
from aks_flex_node.agent.components.artifact_urls import artifact, plain_version, release_url
from aks_flex_node.agent.config.models import Cni
from aks_flex_node.agent.reconcile.component import Component
from aks_flex_node.agent.reconcile.resources import Directory, File, ProgramTree, RuntimePath, Spec, Symlink

if TYPE_CHECKING:
    from aks_flex_node.agent.config.models import NodeConfig
    from aks_flex_node.agent.machine import Machine

NETWORK = "99-aks-flex-node.conflist"
BRIDGE = "flex0"
PLUGINS = (
    "bandwidth bridge dhcp dummy firewall host-device host-local ipvlan loopback macvlan portmap ptp sbr static tap"
    " tuning vlan vrf"
).split()


def desired(config: NodeConfig, machine: Machine) -> Spec:
    version, paths = plain_version(config.cni.version), config.paths
    directory = f"{paths.install_dir}/cni/{version}"
    url, publisher = (
        release_url(template, version, machine.arch, version, machine.arch, version)
        for template in (config.cni.url, Cni().url)
    )
    files = tuple(ArtifactFile(name, f"bin/{name}") for name in PLUGINS)
    networks = (File(f"{paths.cni.conf_dir}/{NETWORK}", network(machine.pod_cidr)),)
    release = artifact("cni", version, url, files, config.cni.sha256, publisher)
    return Spec(
        (
            Directory(f"{paths.install_dir}/cni", ours=True),
            Directory(paths.cni.bin_dir),
            RuntimePath(paths.cni.lib_dir, is_directory=True),
            ProgramTree(directory, "cni", version, (release,)),
            # One link per plugin, because the cluster's network plugin installs programs in the same directory.
            *(Symlink(f"{paths.cni.bin_dir}/{name}", f"{directory}/bin/{name}") for name in PLUGINS),
            *(networks if config.cni.bridge and machine.pod_cidr else ()),
        )
    )


def network(cidr: str) -> bytes:
    """Renders a bridge network with masquerading for the pod CIDR."""
    everywhere = "::/0" if cidr and ipaddress.ip_network(cidr).version == 6 else "0.0.0.0/0"
    ranges = [[{"subnet": cidr}]]
    plugins = [
        {
            "type": "bridge",
            "bridge": BRIDGE,
            "isGateway": True,
            "ipMasq": True,
            "hairpinMode": True,
            "ipam": {"type": "host-local", "ranges": ranges, "routes": [{"dst": everywhere}]},
        },
        {"type": "portmap", "capabilities": {"portMappings": True}},
        {"type": "firewall"},
    ]
    document = {"cniVersion": "1.0.0", "name": "aks-flex-node", "plugins": plugins}
    return (json.dumps(document, indent=2) + "\n").encode()


def subnet(content: bytes | None) -> str:
    """Returns the pod CIDR in a network file of the agent; empty when there is none."""
    try:
        return str(json.loads(content or b"")["plugins"][0]["ipam"]["ranges"][0][0]["subnet"])
    except (ValueError, KeyError, IndexError, TypeError):
        return ""


COMPONENT = Component("cni", "CNI plugins and the node's network", desired, reapply_after_join=True)
