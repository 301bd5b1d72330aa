"""The runc component: the low-level container runtime."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aks_flex_node.agent.artifacts.model import ArtifactFile
from aks_flex_node.agent.components.artifact_urls import artifact, plain_version, release_url
from aks_flex_node.agent.reconcile.component import Component
from aks_flex_node.agent.reconcile.resources import Directory, ProgramTree, Spec, Symlink
from aks_flex_node.settings.models import NodeConfig, Runc

if TYPE_CHECKING:
    from aks_flex_node.agent.machine import Machine


def desired(config: NodeConfig, machine: Machine) -> Spec:
    version, paths = plain_version(config.runc.version), config.paths
    directory = f"{paths.install_dir}/runc/{version}"
    url, publisher = (
        release_url(template, version, machine.arch, version, machine.arch)
        for template in (config.runc.url, Runc().url)
    )
    file = artifact("runc", version, url, (ArtifactFile("", "bin/runc"),), config.runc.sha256, publisher)
    return Spec(
        (
            Directory(f"{paths.install_dir}/runc", ours=True),
            ProgramTree(directory, "runc", version, (file,)),
            Symlink(f"{paths.sbin_dir}/runc", f"{directory}/bin/runc"),
        )
    )


COMPONENT = Component("runc", "runc", desired)
