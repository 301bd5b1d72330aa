"""The agent's own directories."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aks_flex_node.agent.engine.component import Component
from aks_flex_node.agent.engine.resources import Directory, Spec

if TYPE_CHECKING:
    from aks_flex_node.agent.config.models import NodeConfig
    from aks_flex_node.agent.machine import Machine


# Always in the same place, so that a command without a configuration finds it wherever the rest is.
HOME = "/var/lib/aks-flex-node"
APPLIED = f"{HOME}/applied-config.json"
CURRENT = f"{HOME}/current-config.json"  # what was last fetched, with its secrets
VERSION = f"{HOME}/config-version.txt"
FETCHED_FROM = f"{HOME}/config-url.sha256"
NEXT = f"{HOME}/next-config.json"  # what the provider wants and is not in effect yet
UPDATE = f"{HOME}/update.json"  # the journal of an update that is under way
WORK = f"{HOME}/work.json"  # what became of the last work
FAILED = f"{HOME}/failed.json"  # the configuration that was tried and did not work
CLUSTER = f"{HOME}/cluster.json"  # what Azure said of the cluster
FOLLOWS = f"{HOME}/follow.lock"  # held by the agent that stays
FOLLOWING = f"{HOME}/following.json"  # how the agent that stays is doing


def desired(config: NodeConfig, machine: Machine) -> Spec:  # noqa: ARG001
    paths = config.paths
    return Spec(
        (
            Directory(paths.data_dir, 0o700),
            *([Directory(HOME, 0o700)] if paths.data_dir != HOME else []),
            Directory(f"{paths.data_dir}/artifacts", ours=True),
            Directory(paths.install_dir),
            Directory(paths.log_dir, 0o750),
        )
    )


COMPONENT = Component("agent", "the agent's own directories", desired)
