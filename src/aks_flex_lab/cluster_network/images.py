"""The images of the cluster network."""

from __future__ import annotations

from typing import TYPE_CHECKING

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
    from pathlib import Path

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


def network_images(toolbox: Toolbox) -> tuple[TaggedImage, ...]:
    plugin = toolbox.path("podnet", "podnet")
    dns = toolbox.path("coredns", "coredns")
    return (
        TaggedImage(*PODNET, program_image(plugin, toolbox.arch)),
        TaggedImage(*COREDNS, program_image(dns, toolbox.arch)),
        TaggedImage(*KUBE_PROXY, kube_proxy_image(toolbox)),
    )


def program_image(program: Path, architecture: str, *entries: LayerEntry) -> OciImage:
    """Builds an image that runs one program."""
    layer = make_layer([*entries, LayerFile(f"/{program.name}", program, 0o755)])
    return make_image(layer, ContainerConfig(entrypoint=(f"/{program.name}",)), architecture)


def kube_proxy_image(toolbox: Toolbox) -> OciImage:
    """Builds the image of kube-proxy with iptables, whose commands are links that its package's script creates."""
    links = [LayerLink(f"/usr/sbin/{name}", "xtables-nft-multi") for name in FIREWALL_COMMANDS]
    packages = package_entries(PROXY_PACKAGES, toolbox.cache)
    return program_image(toolbox.path("kube-proxy", "kube-proxy"), toolbox.arch, *packages, *links)


def reference(image: tuple[str, str]) -> str:
    return f"{REGISTRY_HOST}/{image[0]}:{image[1]}"
