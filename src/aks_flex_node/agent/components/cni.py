"""CNI plugins, and a bridge network for the pods of this node until the cluster brings a network of its own.

The network takes the addresses that the cluster gave to this node, so no two nodes share any. Its file has the last
name in the directory, and containerd takes the first: whatever the cluster's own plugin writes there wins.
"""

from __future__ import annotations

import ipaddress
import json
from typing import TYPE_CHECKING

from aks_flex_node.agent.artifacts import ArtifactFile
from aks_flex_node.agent.components.artifact_urls import artifact, fill_url, plain_version
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
    url = fill_url(config.cni.url, version, machine.arch, version)
    wanted = tuple(ArtifactFile(name, f"bin/{name}") for name in PLUGINS)
    networks = (File(f"{paths.cni.conf_dir}/{NETWORK}", network(machine.pod_cidr)),)
    return Spec(
        (
            Directory(f"{paths.install_dir}/cni", ours=True),
            Directory(paths.cni.bin_dir),
            RuntimePath(paths.cni.lib_dir),
            ProgramTree(directory, "cni", version, (artifact("cni", version, url, wanted, config.cni.sha256),)),
            # Links one by one: the cluster's own network plugin puts programs into the same directory.
            *(Symlink(f"{paths.cni.bin_dir}/{name}", f"{directory}/bin/{name}") for name in PLUGINS),
            *(networks if config.cni.bridge and machine.pod_cidr else ()),
        )
    )


def network(cidr: str) -> bytes:
    """A bridge that pods of these addresses hang on, and behind which they reach the world."""
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
    """The addresses that a network of ours has; nothing when there is none."""
    try:
        return str(json.loads(content or b"")["plugins"][0]["ipam"]["ranges"][0][0]["subnet"])
    except (ValueError, KeyError, IndexError, TypeError):
        return ""


COMPONENT = Component("cni", "CNI plugins and the node's network", desired, reapply_after_join=True)
