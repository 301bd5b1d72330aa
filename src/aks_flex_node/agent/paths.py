"""Paths of the agent's own files: state, configurations, journals and locks.

Paths of installed components are settings (`config.paths`)."""

from __future__ import annotations

# Fixed, so that a command without a configuration finds it even if other paths are configured differently.
STATE_DIR = "/var/lib/aks-flex-node"
APPLIED_CONFIG = f"{STATE_DIR}/applied-config.json"
CURRENT_CONFIG = f"{STATE_DIR}/current-config.json"  # the configuration in effect, with its secrets
CONFIG_COPY = f"{STATE_DIR}/current-config.copy.json"  # of the configuration in effect, in case it gets damaged
NODE_KEY = f"{STATE_DIR}/node-key.json"  # the key with which the node authenticates to its provider
NODE_KEY_COPY = f"{STATE_DIR}/node-key.copy.json"  # in case the other file gets damaged
CONFIG_VERSION_FILE = f"{STATE_DIR}/config-version.txt"
CONFIG_URL_DIGEST = f"{STATE_DIR}/config-url.sha256"
NEXT_CONFIG = f"{STATE_DIR}/next-config.json"  # received from the provider, not yet in effect
STAGING_CONFIG = f"{STATE_DIR}/staging-config.json"  # the next configuration of the provider, only to be downloaded
STAGING_RESULT = f"{STATE_DIR}/staging-result.json"  # the result of the last job that downloads it
UPDATE_JOURNAL = f"{STATE_DIR}/update-journal.json"  # the journal of the update in progress
JOB_RESULT = f"{STATE_DIR}/job-result.json"  # the result of the last job
RELEASED_CONFIG = f"{STATE_DIR}/released-version.txt"  # the version of an update whose Node was deleted
FAILED_CONFIG = f"{STATE_DIR}/failed-config.json"  # the configuration whose update failed
CLUSTER_FACTS = f"{STATE_DIR}/cluster.json"  # cluster facts read from Azure
POOL_FACTS = f"{STATE_DIR}/aks-pool.json"  # settings of the AKS pool, without its bootstrap token
MACHINE_RECORD = f"{STATE_DIR}/aks-machine.json"  # the node's Machine in the pool
OPERATION_RECORD = f"{STATE_DIR}/operation.json"  # the MachineOperation that this machine has started
CONFIG_JOURNAL = f"{STATE_DIR}/config-journal.json"  # configuration files that are written together
AGENT_FLOOR = f"{STATE_DIR}/agent-floor"  # the highest version of the agent that has run here
DAEMON_LOCK = f"{STATE_DIR}/daemon.lock"  # held by the daemon
DAEMON_STATE = f"{STATE_DIR}/daemon-state.json"  # the daemon's own state
# All files in the state directory that the agent writes again by itself.
STATE_FILES = (
    APPLIED_CONFIG,
    CLUSTER_FACTS,
    POOL_FACTS,
    MACHINE_RECORD,
    OPERATION_RECORD,
    CURRENT_CONFIG,
    CONFIG_COPY,
    NODE_KEY,
    NODE_KEY_COPY,
    CONFIG_VERSION_FILE,
    CONFIG_URL_DIGEST,
    NEXT_CONFIG,
    STAGING_CONFIG,
    STAGING_RESULT,
    UPDATE_JOURNAL,
    JOB_RESULT,
    FAILED_CONFIG,
    AGENT_FLOOR,
    RELEASED_CONFIG,
    DAEMON_STATE,
    DAEMON_LOCK,
    CONFIG_JOURNAL,
)
# Readable by everyone, unlike the state directory. In memory, because the daemon writes it every minute.
PUBLIC_STATUS_DIR = "/run/aks-flex-node"
PUBLIC_STATUS = f"{PUBLIC_STATUS_DIR}/status.json"
# Completes an unbootstrap that is interrupted after it has removed the daemon. It is removed last.
COMPLETION_UNIT = "/etc/systemd/system/aks-flex-node-unbootstrap.service"
COMPLETION_LINK = "/etc/systemd/system/multi-user.target.wants/aks-flex-node-unbootstrap.service"


def state_file(data_dir: str) -> str:
    """Returns the path of the node's state file, which records the join phase across crashes and reboots."""
    return f"{data_dir}/state.json"
