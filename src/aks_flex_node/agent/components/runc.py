"""The runc component: the low-level container runtime."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aks_flex_node.agent.artifacts.model import ArtifactFile
from aks_flex_node.agent.components.artifact_urls import release
from aks_flex_node.agent.reconcile.component import Component
from aks_flex_node.agent.reconcile.resources import Directory, ProgramTree, Spec, Symlink

if TYPE_CHECKING:
    from aks_flex_node.agent.machine import Machine
    from aks_flex_node.settings.models import NodeConfig


def desired(config: NodeConfig, machine: Machine) -> Spec:
    version, paths = config.runc.version, config.paths
    directory = f"{paths.install_dir}/runc/{version}"
    file = release("runc", config.runc, machine.arch, "va", ArtifactFile("", "bin/runc"))
    return Spec(
        (
            Directory(f"{paths.install_dir}/runc", ours=True),
            ProgramTree(directory, "runc", version, (file,)),
            Symlink(f"{paths.sbin_dir}/runc", f"{directory}/bin/runc"),
        )
    )


COMPONENT = Component("runc", "runc", desired)
