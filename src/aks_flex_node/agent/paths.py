"""Paths of the agent's own files, wherever they are used: state, configurations, journals and locks.

Paths of what the agent installs are settings (`config.paths`)."""

from __future__ import annotations

# Always in the same place, so that a command without a configuration finds it wherever the rest is.
STATE_DIR = "/var/lib/aks-flex-node"
APPLIED_CONFIG = f"{STATE_DIR}/applied-config.json"
CURRENT_CONFIG = f"{STATE_DIR}/current-config.json"  # what was last fetched, with its secrets
CONFIG_VERSION_FILE = f"{STATE_DIR}/config-version.txt"
CONFIG_URL_DIGEST = f"{STATE_DIR}/config-url.sha256"
NEXT_CONFIG = f"{STATE_DIR}/next-config.json"  # what the provider wants and is not in effect yet
UPDATE_JOURNAL = f"{STATE_DIR}/update.json"  # the journal of an update that is under way
JOB_RESULT = f"{STATE_DIR}/work.json"  # the result of the last job
FAILED_CONFIG = f"{STATE_DIR}/failed.json"  # the configuration that was tried and did not work
CLUSTER_FACTS = f"{STATE_DIR}/cluster.json"  # what Azure said of the cluster
DAEMON_LOCK = f"{STATE_DIR}/follow.lock"  # held by the daemon
DAEMON_STATE = f"{STATE_DIR}/following.json"  # the daemon's own state


def state_file(data_dir: str) -> str:
    """The node's state: how far the join is, over crashes and reboots."""
    return f"{data_dir}/state.json"
