"""The other services of the cloud: DNS, image registry, artifact mirror and VPN gateway."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aks_flex_lab import dns, network
from aks_flex_lab.arm import openvpn
from aks_flex_lab.arm.network_resources import NetworkResources
from aks_flex_lab.files import write_atomically
from aks_flex_lab.images.builder import ImagePrograms, lab_images
from aks_flex_lab.images.registry import RegistrySettings, registry_argv, registry_config
from aks_flex_lab.images.registry import push_images as registry_push_images
from aks_flex_lab.mirror.control import MirrorClient
from aks_flex_lab.pki import CertificateAuthority
from aks_flex_lab.processes import run
from aks_flex_lab.supervisor import LabComponent, NamespaceConnection, client_tls_context, tcp_probe

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from aks_flex_lab.images.builder import TaggedImage
    from aks_flex_lab.kernel.namespaces import NetworkNamespace
    from aks_flex_lab.layout import LabLayout
    from aks_flex_lab.tools.toolbox import Toolbox


@dataclass(frozen=True)
class CloudServices:
    layout: LabLayout
    cloud: NetworkNamespace

    def dns(self) -> LabComponent:
        dns.hosts_directory(self.layout).mkdir(parents=True, exist_ok=True)
        ready = tcp_probe(self.cloud, network.DNS, 53)
        return LabComponent("dns", tuple(dns.dnsmasq_command(self.layout)), f"{network.DNS}:53", ready, self.cloud)

    def mirror(self, tree: Path) -> LabComponent:
        serving = CertificateAuthority(self.layout.pki).issue(
            "mirror", "mirror", names=(*dns.ARTIFACT_HOSTS, f"mirror.{network.DOMAIN}", network.MIRROR)
        )
        argv = (
            *(sys.executable, "-m", "aks_flex_lab.mirror"),
            f"--root={tree}",
            f"--listen={network.MIRROR}:443",
            f"--plain={network.MIRROR}:80",
            f"--cert={serving.certificate}",
            f"--key={serving.key}",
            f"--control={self.mirror_control()}",
        )
        ready = MirrorClient(self.mirror_control(), timeout=1).is_running  # another program may have its address
        return LabComponent("mirror", argv, f"https://{network.MIRROR}", ready, self.cloud)

    def mirror_control(self) -> Path:
        return self.layout.components / "mirror" / "control.sock"

    def registry(self) -> LabComponent:
        serving = CertificateAuthority(self.layout.pki).issue(
            "registry", "registry", names=(*dns.IMAGE_HOSTS, f"registry.{network.DOMAIN}", network.REGISTRY)
        )
        directory = self.layout.components / "registry"
        settings = RegistrySettings(
            f"{network.REGISTRY}:443", directory / "storage", serving.certificate, serving.key
        )
        config = directory / "config.yml"
        return LabComponent(
            "registry",
            registry_argv(config),
            f"https://{network.REGISTRY}",
            tcp_probe(self.cloud, network.REGISTRY, 443),
            self.cloud,
            files={config: registry_config(settings)},
        )

    def push_images(self, *toolboxes: Toolbox) -> None:
        """Pushes the images that every lab has, built from the programs of each toolbox, that of the host first."""
        programs = {
            box.arch: ImagePrograms(box.path("pause", "pause"), box.path("busybox", "busybox")) for box in toolboxes
        }
        self.push(lab_images(programs))

    def push(self, images: Iterable[TaggedImage]) -> None:
        """Pushes images to the registry, except those that it has."""
        trust = client_tls_context(CertificateAuthority(self.layout.pki).certificate)
        registry_push_images(
            lambda: NamespaceConnection(self.cloud, network.REGISTRY, 443, f"registry.{network.DOMAIN}", trust),
            images,
        )


VIRTUAL_NETWORK = "virtualNetworks/lab"
SUBNET_NAME = "nodes"


@dataclass(frozen=True)
class VpnComponent:
    layout: LabLayout
    cloud: NetworkNamespace
    state: Path  # state directory of the lab's ARM
    group: str  # resource group of the cluster

    @property
    def network_id(self) -> str:
        return f"{self.group}/providers/Microsoft.Network/{VIRTUAL_NETWORK}"

    @property
    def subnet_id(self) -> str:
        return f"{self.network_id}/subnets/{SUBNET_NAME}"

    @property
    def resources(self) -> NetworkResources:
        """The network resources, to inspect them and to make Azure slow or failing."""
        return NetworkResources(self.state)

    def prepare(self, location: str) -> None:
        """Creates the cluster's virtual network unless it exists, and the gateway's CA certificate and shared key."""
        if self.resources.find(self.network_id) is None:
            addresses = {"addressSpace": {"addressPrefixes": [network.PRIVATE]}}
            servers = {"dhcpOptions": {"dnsServers": [network.PRIVATE_DNS]}}
            for id_, kind, properties in (
                (self.network_id, "virtualNetworks", {**addresses, **servers}),
                (self.subnet_id, "virtualNetworks/subnets", {"addressPrefix": network.PRIVATE_NODES}),
            ):
                named = {"id": id_, "name": id_.rpartition("/")[2], "type": f"Microsoft.Network/{kind}"}
                self.resources.put({**named, "location": location, "properties": properties})
        shared = openvpn.shared_key_file(self.state)
        if not shared.exists():
            write_atomically(shared, run("openvpn", "--genkey", "secret", "/dev/stdout").out, 0o600)
        write_atomically(
            openvpn.authority_file(self.state), CertificateAuthority(self.layout.pki).certificate.read_text()
        )

    def component(self) -> LabComponent:
        serving = CertificateAuthority(self.layout.pki).issue("vpn", network.VPN_NAME, names=(network.VPN_NAME,))
        argv = (
            *(sys.executable, "-m", "aks_flex_lab.vpn"),
            f"--state={self.state}",
            f"--directory={self.layout.components / 'vpn'}",
            f"--certificate={serving.certificate}",
            f"--key={serving.key}",
        )
        ready = tcp_probe(self.cloud, network.PRIVATE_DNS, 53)
        return LabComponent("vpn", argv, f"{network.VPN}:443", ready, self.cloud)
