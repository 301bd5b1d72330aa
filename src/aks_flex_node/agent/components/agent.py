"""The component of the agent's own directories, and the paths of its files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aks_flex_node.agent.reconcile.component import Component
from aks_flex_node.agent.reconcile.resources import Directory, Spec

if TYPE_CHECKING:
    from aks_flex_node.agent.config.models import NodeConfig
    from aks_flex_node.agent.machine import Machine


# Always in the same place, so that a command without a configuration finds it wherever the rest is.
STATE_DIR = "/var/lib/aks-flex-node"
APPLIED_CONFIG = f"{STATE_DIR}/applied-config.json"
CURRENT_CONFIG = f"{STATE_DIR}/current-config.json"  # what was last fetched, with its secrets
CONFIG_VERSION_FILE = f"{STATE_DIR}/config-version.txt"
CONFIG_URL_DIGEST = f"{STATE_DIR}/config-url.sha256"
NEXT_CONFIG = f"{STATE_DIR}/next-config.json"  # what the provider wants and is not in effect yet
UPDATE_JOURNAL = f"{STATE_DIR}/update.json"  # the journal of an update that is under way
JOB_RESULT = f"{STATE_DIR}/work.json"  # what became of the last work
FAILED_CONFIG = f"{STATE_DIR}/failed.json"  # the configuration that was tried and did not work
CLUSTER_FACTS = f"{STATE_DIR}/cluster.json"  # what Azure said of the cluster
DAEMON_LOCK = f"{STATE_DIR}/follow.lock"  # held by the agent that stays
DAEMON_STATE = f"{STATE_DIR}/following.json"  # how the agent that stays is doing


def desired(config: NodeConfig, machine: Machine) -> Spec:  # noqa: ARG001
    paths = config.paths
    return Spec(
        (
            Directory(paths.data_dir, 0o700),
            *([Directory(STATE_DIR, 0o700)] if paths.data_dir != STATE_DIR else []),
            Directory(f"{paths.data_dir}/artifacts", ours=True),
            Directory(paths.install_dir),
            Directory(paths.log_dir, 0o750),
        )
    )


COMPONENT = Component("agent", "the agent's own directories", desired)
