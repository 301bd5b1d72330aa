"""The cluster network, an optional part of the lab: network plugin, kube-proxy and CoreDNS on every node.

Their images are built from the lab's tools. In the cluster they are three DaemonSets with accounts, roles and
settings.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from aks_flex_lab import network
from aks_flex_lab.components.pod_routes import pod_routes_component
from aks_flex_lab.images.builder import (
    ContainerConfig,
    LayerEntry,
    LayerFile,
    LayerLink,
    OciImage,
    TaggedImage,
    make_image,
    make_layer,
)
from aks_flex_lab.images.package_layer import package_entries
from aks_flex_lab.tools.catalog import go_tool

if TYPE_CHECKING:
    from aks_flex_lab.lab import Lab
    from aks_flex_lab.progress import ProgressReporter
    from aks_flex_lab.tools.toolbox import Toolbox

REGISTRY_HOST = "registry.k8s.io"
PODNET_TOOL, COREDNS_TOOL, PROXY_TOOL = go_tool("podnet"), go_tool("coredns"), go_tool("kube-proxy")
NETWORK_TOOLS = tuple(tool.selector for tool in (PODNET_TOOL, COREDNS_TOOL, PROXY_TOOL))  # most labs do not need them
PODNET = ("flex/podnet", PODNET_TOOL.version)
KUBE_PROXY = ("kube-proxy", f"v{PROXY_TOOL.version}")
COREDNS = ("coredns/coredns", f"v{COREDNS_TOOL.version}")
PROXY_PACKAGES = ("iptables",)
FIREWALL_COMMANDS = (
    "iptables",
    "iptables-save",
    "iptables-restore",
    "ip6tables",
    "ip6tables-save",
    "ip6tables-restore",
)
NAMESPACE = "kube-system"
DAEMON_SETS = ("podnet", "kube-proxy", "coredns")
MANIFEST = Path(__file__).with_suffix(".yaml")


def install_network(lab: Lab, progress: ProgressReporter) -> None:
    """Installs the network plugin, kube-proxy and CoreDNS; existing and later nodes run them."""
    lab.toolbox.install(NETWORK_TOOLS, progress, purpose="the cluster network")
    with progress.step("images of the cluster network"):
        plugin = lab.toolbox.path("podnet", "podnet")
        dns = lab.toolbox.path("coredns", "coredns")
        lab.services.push(
            (
                TaggedImage(*PODNET, program_image(plugin, lab.toolbox.arch)),
                TaggedImage(*COREDNS, program_image(dns, lab.toolbox.arch)),
                TaggedImage(*KUBE_PROXY, kube_proxy_image(lab.toolbox)),
            )
        )
    with progress.step("routes to pods, network plugin, kube-proxy, CoreDNS"):
        lab.supervisor.start(pod_routes_component(lab.layout))
        lab.cluster.apply(*network_objects())


def program_image(program: Path, architecture: str, *entries: LayerEntry) -> OciImage:
    """Builds an image that runs one program."""
    layer = make_layer([*entries, LayerFile(f"/{program.name}", program, 0o755)])
    return make_image(layer, ContainerConfig(entrypoint=(f"/{program.name}",)), architecture)


def kube_proxy_image(toolbox: Toolbox) -> OciImage:
    """Builds the image of kube-proxy with iptables, whose commands are links that its package's script creates."""
    links = [LayerLink(f"/usr/sbin/{name}", "xtables-nft-multi") for name in FIREWALL_COMMANDS]
    packages = package_entries(PROXY_PACKAGES, toolbox.cache)
    return program_image(toolbox.path("kube-proxy", "kube-proxy"), toolbox.arch, *packages, *links)


def network_objects() -> list[dict[str, Any]]:
    """Returns the objects of the cluster: three DaemonSets with their accounts, roles and settings."""
    images = {"PODNET": PODNET, "KUBE_PROXY": KUBE_PROXY, "COREDNS": COREDNS}
    values = {word: f"{REGISTRY_HOST}/{name}:{tag}" for word, (name, tag) in images.items()}
    text = MANIFEST.read_text()
    for word, value in {
        **values,
        "PODS": network.PODS,
        "DNS": network.DNS,
        "DNS_SERVICE": network.DNS_SERVICE,
    }.items():
        text = text.replace(f"@{word}@", value)
    return [*yaml.safe_load_all(text)]
