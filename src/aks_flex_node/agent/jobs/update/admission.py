"""Pre-update checks: what a new configuration changes, and why it cannot be applied now (other node, paused,
downgrade, version skew, maintenance window). Pure: machine, cluster and time are passed in.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from aks_flex_node.agent.components.artifact_urls import minor_version, version_key
from aks_flex_node.agent.config import files, loader, resolved
from aks_flex_node.agent.config.resolved import kubelet_auth
from aks_flex_node.agent.job_records.job_result import WAITING_FOR_NODE_DELETION, JobKind, JobResult, JobStatus
from aks_flex_node.agent.policy import REFUSAL_HINT, REFUSED_BY_POLICY, Policy, refusal_message
from aks_flex_node.agent.text import pluralize
from aks_flex_node.api.maintenance_window import next_opening
from aks_flex_node.lean_dataclass import frozen
from aks_flex_node.settings.setting import DRAIN, PODS, Disturbance
from aks_flex_node.settings.table import keys, value_at

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from aks_flex_node.agent.job_records.update_journal import FailedUpdate
    from aks_flex_node.agent.stored_config import StoredConfig
    from aks_flex_node.settings.models import NodeConfig


@frozen
class ComponentUpgrade:
    """A component that is replaced; the version is the same if only its digest changes."""

    component: str
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.component} {self.old or 'none'} -> {self.new or 'none'}"


@frozen
class ConfigChanges:
    upgrades: tuple[ComponentUpgrade, ...] = ()
    disturbances: frozenset[Disturbance] = frozenset()
    endpoint_changed: bool = False  # the connection to the API server: address, CA, authentication or proxy
    may_drain: bool = True

    @property
    def components(self) -> frozenset[str]:
        return frozenset(one.component for one in self.upgrades)

    @property
    def disrupts_pods(self) -> bool:
        """Whether the update may affect running pods."""
        return bool(self.disturbances & {PODS, DRAIN})

    @property
    def needs_drain(self) -> bool:
        return self.may_drain and DRAIN in self.disturbances

    @property
    def downgrades(self) -> tuple[ComponentUpgrade, ...]:
        known = [one for one in self.upgrades if one.old and one.new]
        return tuple(one for one in known if version_key(one.new) < version_key(one.old))


def compare_configs(old: NodeConfig, new: NodeConfig) -> ConfigChanges:
    before, after = _component_versions(old), _component_versions(new)
    upgrades = tuple(
        ComponentUpgrade(name, before[name][0], after[name][0]) for name in before if before[name] != after[name]
    )
    disturbances = frozenset(key.setting.disturbs for key in keys() if value_at(old, key) != value_at(new, key))
    endpoint_changed = _connection_settings(old) != _connection_settings(new)
    return ConfigChanges(upgrades, disturbances, endpoint_changed, new.update_policy.drain)


def _connection_settings(config: NodeConfig) -> tuple[object, ...]:
    kubelet = config.node.kubelet
    return (kubelet.server_url, kubelet.ca_cert_data, config.proxy, kubelet_auth(config))


def _component_versions(config: NodeConfig) -> dict[str, tuple[str, dict[str, str]]]:
    """Returns the version and the pinned digests of each component."""
    return {
        "kubernetes": (config.kubernetes.version or "", config.kubernetes.sha256),
        "containerd": (config.containerd.version, config.containerd.sha256),
        "runc": (config.runc.version, config.runc.sha256),
        "cni": (config.cni.version, config.cni.sha256),
        "npd": (config.npd.version, config.npd.sha256) if config.npd.enabled else ("", {}),
    }


MAX_MINORS_OLDER = 3
_result = partial(JobResult, JobKind.UPDATE)  # why an update is deferred or refused


def check_same_node(current: NodeConfig, desired: NodeConfig, name: str, desired_name: str) -> JobResult | None:
    """Refuses a configuration for another node or cluster, because the node's certificate is valid for one only."""
    here, there = resolved.target_cluster(current), resolved.target_cluster(desired)
    elsewhere = bool(here and there and [one.lower() for one in here] != [one.lower() for one in there])
    if name == desired_name and not elsewhere:
        return None
    cluster, other = ("/".join(each) if each else "its cluster" for each in (here, there))
    return _result(
        JobStatus.REFUSED,
        "NodeMismatch",
        f"This machine is node {name} of {cluster}, but the configuration is for node {desired_name} of {other}.",
        "Correct the node resource, or run `aks-flex-node unbootstrap` and join again.",
    )


def check_paths(current: NodeConfig, desired: NodeConfig) -> JobResult | None:
    """Refuses changed paths: a node that joined with a local file may use paths that its resource does not know."""
    if current.paths == desired.paths:
        return None
    return _result(
        JobStatus.REFUSED,
        "PathsChanged",
        "The configuration changes the node's paths, and an update cannot move the files of a node.",
        "Run `aks-flex-node unbootstrap`, and join again with the new configuration.",
    )


def check_policy(policy: Policy, current: NodeConfig, desired: NodeConfig) -> JobResult | None:
    """Refuses what the administrator of this machine forbids."""
    violations = policy.violations(desired, current)
    if not violations:
        return None
    message = refusal_message(policy, violations)
    # The administrator may change the policy.
    return _result(JobStatus.REFUSED, REFUSED_BY_POLICY, message, REFUSAL_HINT, retryable=True)


def check_complete(desired: NodeConfig) -> JobResult | None:
    """Refuses a configuration that lacks settings required for a join, except the bootstrap token."""
    problems = [one for one in loader.missing_for_join(desired) if one.path != files.TOKEN_FILE]
    if not problems:
        return None
    reasons = " ".join(f"{one.path} {one.reason}" for one in problems)
    return _result(JobStatus.REFUSED, "ConfigIncomplete", f"The configuration is incomplete: {reasons}")


def check_not_failed_before(stored: StoredConfig, failure: FailedUpdate | None) -> JobResult | None:
    if failure is None or (failure.version, failure.fingerprint) != (stored.version, stored.fingerprint):
        return None
    return _result(
        JobStatus.FAILED,
        failure.reason,
        f"This configuration was rolled back at {failure.at} and is not retried: {failure.message}",
        "Change the configuration. The agent tries any changed configuration.",
    )


def check_not_paused(desired: NodeConfig) -> JobResult | None:
    if not desired.update_policy.paused:
        return None
    message = "Updates of this node are paused. The new configuration is pending."
    hint = "Run `aks-flex-rp node update --name NODE --resume`, or set `updatePolicy.paused` to false."
    return _result(JobStatus.DEFERRED, "Paused", message, hint, retryable=True)


def check_downgrade(changes: ConfigChanges, desired: NodeConfig) -> JobResult | None:
    if not changes.downgrades or desired.update_policy.allow_downgrade:
        return None
    downgrades = ", ".join(str(one) for one in changes.downgrades)
    return _result(
        JobStatus.REFUSED,
        "DowngradeRefused",
        f"The configuration would downgrade {downgrades}.",
        "To allow the downgrade, set `updatePolicy.allowDowngrade` to true.",
    )


def check_version_skew(desired: NodeConfig, server: str) -> JobResult | None:
    """Refuses a kubelet that is newer than the API server, or more than three minor versions older."""
    kubelet = desired.kubernetes.version or ""
    (major, minor), (server_major, server_minor) = (minor_version(each) or (0, 0) for each in (kubelet, server))
    behind = server_minor - minor
    if major == server_major and 0 <= behind <= MAX_MINORS_OLDER:
        return None
    newer = (major, minor) > (server_major, server_minor)
    what = "newer than" if newer else f"{pluralize(behind, 'minor version')} older than"
    rule = "must not be newer" if newer else f"may be at most {MAX_MINORS_OLDER} minor versions older"
    return _result(
        JobStatus.REFUSED,
        "SkewViolation",
        f"Kubelet {kubelet} is {what} the API server ({server}). It {rule}.",
        "Upgrade the cluster first." if newer else "Set a newer Kubernetes version for this node.",
        retryable=True,  # the cluster may be upgraded
    )


def check_node_deletion(changes: ConfigChanges, services: Sequence[str]) -> JobResult | None:
    """Defers a change that disturbs pods or restarts a service until AKS has drained and deleted the Node."""
    if not changes.disrupts_pods and not services:
        return None
    restarts = [f"restart of {name.removesuffix('.service')}" for name in services]
    pending = ", ".join([str(one) for one in changes.upgrades] or restarts)
    message = f"The change is applied when AKS has drained and deleted the Node. Pending: {pending}."
    return _result(
        JobStatus.DEFERRED,
        WAITING_FOR_NODE_DELETION,
        message,
        "Upgrade the pool with `az aks nodepool upgrade`, or set `aks.upgradeTrigger` to immediate.",
        retryable=True,
    )


def check_maintenance_window(changes: ConfigChanges, desired: NodeConfig, now: datetime) -> JobResult | None:
    if not changes.disrupts_pods:
        return None
    window = desired.update_policy.maintenance_window
    opens = next_opening(window, now)
    if opens is None:
        return None
    upgrades = ", ".join(str(one) for one in changes.upgrades)
    when = f"{opens:%A %Y-%m-%d} at {opens:%H:%M} ({window.time_zone})"
    message = f"The maintenance window is closed. It opens on {when}. Pending: {upgrades}."
    return _result(JobStatus.DEFERRED, "MaintenanceWindowClosed", message, retryable=True)
