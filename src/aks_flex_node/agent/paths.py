"""Paths of the agent's own files: state, configurations, journals and locks.

Paths of installed components are settings (`config.paths`)."""

from __future__ import annotations

# Fixed, so that a command without a configuration finds it even if other paths are configured differently.
STATE_DIR = "/var/lib/aks-flex-node"
APPLIED_CONFIG = f"{STATE_DIR}/applied-config.json"
CURRENT_CONFIG = f"{STATE_DIR}/current-config.json"  # the configuration in effect, with its secrets
CONFIG_VERSION_FILE = f"{STATE_DIR}/config-version.txt"
CONFIG_URL_DIGEST = f"{STATE_DIR}/config-url.sha256"
NEXT_CONFIG = f"{STATE_DIR}/next-config.json"  # received from the provider, not yet in effect
# File names stay as earlier versions wrote them, so that an upgraded node keeps its state.
UPDATE_JOURNAL = f"{STATE_DIR}/update.json"  # the journal of the update in progress
JOB_RESULT = f"{STATE_DIR}/work.json"  # the result of the last job
RELEASED_CONFIG = f"{STATE_DIR}/released.txt"  # the version that a running update may apply: the Node was deleted
FAILED_CONFIG = f"{STATE_DIR}/failed.json"  # the configuration whose update failed
CLUSTER_FACTS = f"{STATE_DIR}/cluster.json"  # cluster facts read from Azure
POOL_FACTS = f"{STATE_DIR}/aks-pool.json"  # settings of the AKS pool, without its bootstrap token
MACHINE_RECORD = f"{STATE_DIR}/aks-machine.json"  # the node's Machine in the pool
OPERATION_RECORD = f"{STATE_DIR}/operation.json"  # the MachineOperation that this machine has started
DAEMON_LOCK = f"{STATE_DIR}/follow.lock"  # held by the daemon
DAEMON_STATE = f"{STATE_DIR}/following.json"  # the daemon's own state
# Readable by everyone, unlike the state directory. In memory, because the daemon writes it every minute.
PUBLIC_STATUS_DIR = "/run/aks-flex-node"
PUBLIC_STATUS = f"{PUBLIC_STATUS_DIR}/status.json"


def state_file(data_dir: str) -> str:
    """Returns the path of the node's state file, which records the join phase across crashes and reboots."""
    return f"{data_dir}/state.json"
