"""runc: what starts containers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aks_flex_node.agent.artifacts import Wanted
from aks_flex_node.agent.components.sources import artifact, filled, plain
from aks_flex_node.agent.engine.component import Component
from aks_flex_node.agent.engine.resources import Directory, Link, Program, Spec

if TYPE_CHECKING:
    from aks_flex_node.agent.config.models import NodeConfig
    from aks_flex_node.agent.machine import Machine


def desired(config: NodeConfig, machine: Machine) -> Spec:
    version, paths = plain(config.runc.version), config.paths
    place = f"{paths.install_dir}/runc/{version}"
    url = filled(config.runc.url, version, machine.arch)
    file = artifact("runc", version, url, (Wanted("", "bin/runc"),), config.runc.sha256)
    return Spec(
        (
            Directory(f"{paths.install_dir}/runc", ours=True),
            Program(place, "runc", version, (file,)),
            Link(f"{paths.sbin_dir}/runc", f"{place}/bin/runc"),
        )
    )


COMPONENT = Component("runc", "runc", desired)
