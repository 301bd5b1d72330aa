"""The agent component: the agent's directories."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aks_flex_node.agent.paths import STATE_DIR, STATE_FILES, state_file
from aks_flex_node.agent.reconcile.component import Component
from aks_flex_node.agent.reconcile.resources import Directory, Spec, StateFile

if TYPE_CHECKING:
    from aks_flex_node.agent.machine import Machine
    from aks_flex_node.settings.models import NodeConfig


def desired(config: NodeConfig, machine: Machine) -> Spec:  # noqa: ARG001
    paths = config.paths
    return Spec(
        (
            Directory(paths.data_dir, 0o700),
            *([Directory(STATE_DIR, 0o700)] if paths.data_dir != STATE_DIR else []),
            Directory(f"{paths.data_dir}/artifacts", ours=True),
            Directory(paths.install_dir),
            Directory(paths.log_dir, 0o750),
            *(StateFile(path) for path in (state_file(paths.data_dir), *STATE_FILES)),
        )
    )


COMPONENT = Component("agent", "the agent's own directories", desired)
