"""Installs the cluster network in a running lab."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from aks_flex_lab.cluster_network.images import NETWORK_TOOLS, network_images
from aks_flex_lab.cluster_network.manifests import network_objects
from aks_flex_lab.components.pod_routes import pod_routes_component

if TYPE_CHECKING:
    from aks_flex_lab.lab import Lab
    from aks_flex_lab.progress import ProgressReporter


@dataclass(frozen=True)
class ClusterNetwork:
    lab: Lab

    def install(self, progress: ProgressReporter) -> None:
        """Installs the network plugin, kube-proxy and CoreDNS; existing and later nodes run them."""
        cluster = self.lab.cluster
        self.lab.toolbox.install(NETWORK_TOOLS, progress)
        with progress.step("images of the cluster network"):
            self.lab.services.push(network_images(self.lab.toolbox))
        with progress.step("routes to pods, network plugin, kube-proxy, CoreDNS"):
            self.lab.supervisor.start(pod_routes_component(self.lab.layout))
            cluster.apply(*network_objects())
