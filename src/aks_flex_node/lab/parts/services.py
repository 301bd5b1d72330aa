"""The cloud's services besides the control plane: DNS, the image registry and the artifact mirror."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aks_flex_node.lab import dns, network
from aks_flex_node.lab.images.contents import lab_images
from aks_flex_node.lab.images.pushes import push_all
from aks_flex_node.lab.images.registry import RegistrySettings, registry_argv, registry_config
from aks_flex_node.lab.parts.part import Part
from aks_flex_node.lab.parts.probes import Connection, accepts, trusting
from aks_flex_node.lab.pki import Authority

if TYPE_CHECKING:
    from pathlib import Path

    from aks_flex_node.lab.kernel.namespaces import Namespace
    from aks_flex_node.lab.layout import Layout
    from aks_flex_node.lab.tools.toolbox import Toolbox


@dataclass(frozen=True)
class Services:
    layout: Layout
    cloud: Namespace

    def names(self) -> Part:
        dns.host_files(self.layout).mkdir(parents=True, exist_ok=True)
        ready = accepts(self.cloud, network.DNS, 53)
        return Part("dns", tuple(dns.command(self.layout)), f"{network.DNS}:53", ready, self.cloud)

    def mirror(self, tree: Path) -> Part:
        serving = Authority(self.layout.pki).issue(
            "mirror", "mirror", names=(*dns.ARTIFACT_HOSTS, f"mirror.{network.DOMAIN}", network.MIRROR)
        )
        argv = (
            *(sys.executable, "-m", "aks_flex_node.lab.mirror"),
            f"--root={tree}",
            f"--listen={network.MIRROR}:443",
            f"--plain={network.MIRROR}:80",
            f"--cert={serving.certificate}",
            f"--key={serving.key}",
            f"--control={self.mirror_control()}",
        )
        ready = accepts(self.cloud, network.MIRROR, 443)
        return Part("mirror", argv, f"https://{network.MIRROR}", ready, self.cloud)

    def mirror_control(self) -> Path:
        return self.layout.parts / "mirror" / "control.sock"

    def registry(self) -> Part:
        serving = Authority(self.layout.pki).issue(
            "registry", "registry", names=(*dns.IMAGE_HOSTS, f"registry.{network.DOMAIN}", network.REGISTRY)
        )
        room = self.layout.parts / "registry"
        settings = RegistrySettings(f"{network.REGISTRY}:443", room / "storage", serving.certificate, serving.key)
        config = room / "config.yml"
        return Part(
            "registry",
            registry_argv(config),
            f"https://{network.REGISTRY}",
            accepts(self.cloud, network.REGISTRY, 443),
            self.cloud,
            files={config: registry_config(settings)},
        )

    def push_images(self, toolbox: Toolbox) -> None:
        """Bring the lab's own images into the registry; what is there already is not sent again."""
        trust = trusting(Authority(self.layout.pki).certificate)
        push_all(
            lambda: Connection(self.cloud, network.REGISTRY, 443, f"registry.{network.DOMAIN}", trust),
            lab_images(toolbox.path("pause", "pause"), toolbox.arch, toolbox.path("busybox", "busybox")),
        )
