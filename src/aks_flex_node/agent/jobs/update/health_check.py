"""The health check after an update: readiness, versions, services, previously running pods, container smoke test."""

from __future__ import annotations

import re
from dataclasses import field
from typing import TYPE_CHECKING, Any

from aks_flex_node.agent.cluster import diagnosis, nodes
from aks_flex_node.agent.cluster.client import ApiClient, ApiStatusError
from aks_flex_node.agent.cluster.node_health import KUBELET_UNIT
from aks_flex_node.agent.cluster.readiness import NodeReadiness, ReadinessEnvironment
from aks_flex_node.errors import ClusterError, FlexError, MachineError
from aks_flex_node.host.actions import RestartUnit, Run
from aks_flex_node.lean_dataclass import frozen

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from aks_flex_node.agent.cluster.nodes import ClusterNode
    from aks_flex_node.host.host import Host
    from aks_flex_node.settings.models import NodeConfig


CONTAINER_NAME = "aks-flex-node-trial"
CTR_SECONDS = 30.0


def run_container_smoke_test(host: Host, config: NodeConfig, say: Callable[[str], None]) -> None:
    """Starts a container from the pause image and removes it; raises MachineError if it does not start."""
    image = config.containerd.pause_image
    if image not in _run_ctr(host, config, "images", "list", "--quiet"):
        say(f"container smoke test skipped: {image} is not on this machine")
        return
    _remove_container(host, config)  # left by a crash
    runc = f"{config.paths.sbin_dir}/runc"
    arguments = ("run", "--detach", "--runc-binary", runc, "--cgroup", f"/{CONTAINER_NAME}", image, CONTAINER_NAME)
    try:
        host.apply(Run(_ctr_command(config, *arguments), "start the smoke test container", seconds=CTR_SECONDS))
    except MachineError as error:
        raise MachineError(
            "container-start-failed",
            f"Containers cannot be started: {error.message}",
            "Check `journalctl -u containerd -n 50`.",
        ) from error
    finally:
        _remove_container(host, config)
    say("container smoke test passed")


def _remove_container(host: Host, config: NodeConfig) -> None:
    if CONTAINER_NAME in _run_ctr(host, config, "tasks", "list", "--quiet"):
        why = "stop the smoke test container"
        host.apply(Run(_ctr_command(config, "tasks", "delete", "--force", CONTAINER_NAME), why, seconds=CTR_SECONDS))
    if CONTAINER_NAME in _run_ctr(host, config, "containers", "list", "--quiet"):
        why = "remove the smoke test container"
        host.apply(Run(_ctr_command(config, "containers", "delete", CONTAINER_NAME), why, seconds=CTR_SECONDS))


def _run_ctr(host: Host, config: NodeConfig, *arguments: str) -> list[str]:
    return host.query(*_ctr_command(config, *arguments), seconds=CTR_SECONDS).out.split()


def _ctr_command(config: NodeConfig, *arguments: str) -> tuple[str, ...]:
    return (f"{config.paths.bin_dir}/ctr", "--namespace", "k8s.io", *arguments)


AWAY_ERRORS = frozenset(("api-server-unreachable", "api-server-name-not-resolved", "api-server-unexpected-response"))


MAX_RESTORED = 3  # times that a health check restores a deleted Node
LOST_SECONDS = 10.0  # without a Node after which a running kubelet has lost it


class NodeDeletedError(ClusterError):
    """The Node does not exist, although the kubelet is healthy."""


class ApiServerUnreachableError(ClusterError):
    """The API server is unreachable, and no problem was found on this machine."""


@frozen
class ExpectedHealth:
    """Conditions that the health check requires besides a Ready node."""

    services: tuple[str, ...] = ()  # restarted by the update
    kubelet: str = ""  # expected versions in the Node's status; empty for any
    runtime: str = ""
    pods: Mapping[str, str] = field(default_factory=dict)  # must be running: uid -> namespace/name
    smoke_test: bool = False


@frozen
class HealthCheck:
    host: Host
    config: NodeConfig
    node: str
    api: ApiClient
    environment: ReadinessEnvironment
    say: Callable[[str], None]

    def run(self, expected: ExpectedHealth) -> None:
        """Raises the cause when the node is not healthy in time. Raises NodeDeletedError or ApiServerUnreachableError
        when it cannot tell.
        """
        try:
            self._run_with_node(expected)
        except ApiServerUnreachableError as error:
            # The update is not the cause, so the check gets the same time again.
            self.say(f"no problem on this machine; waiting for the API server: {error.message}")
            self._run_with_node(expected)

    def _run_with_node(self, expected: ExpectedHealth) -> None:
        """Restores a Node that someone deletes after the kubelet has registered it. The update is not the cause."""
        for _ in range(MAX_RESTORED):
            try:
                return self._run_once(expected)
            except NodeDeletedError:
                self.say("the Node was deleted meanwhile; the kubelet registers it again")
                self.host.apply(RestartUnit(KUBELET_UNIT))
        return self._run_once(expected)

    def _run_once(self, expected: ExpectedHealth) -> None:
        seconds = float(self.config.update_policy.health_timeout_seconds)
        readiness = NodeReadiness(self.host, self.config, self.node, self.say, self.environment, seconds)
        try:
            readiness.wait_registered(LOST_SECONDS)
            if expected.smoke_test:
                run_container_smoke_test(self.host, self.config, self.say)
            readiness.wait_healthy(lambda node: self._find_problem(node, expected))
        except ClusterError as error:
            problem = readiness.local_problem()
            if error.name == "node-not-registered" and problem is None and readiness.is_node_missing():
                raise NodeDeletedError(error.name, error.message, error.hint, retryable=True) from None
            if error.name not in AWAY_ERRORS:
                raise
            if problem:
                raise problem from None
            raise ApiServerUnreachableError(error.name, error.message, error.hint, retryable=True) from None

    def _find_problem(self, node: ClusterNode, expected: ExpectedHealth) -> FlexError | None:
        for what, reported, desired in (
            ("kubelet", node.version, expected.kubelet),
            ("container runtime", node.runtime, expected.runtime),
        ):
            if not matches_version(reported, desired):
                return ClusterError(
                    "kubelet-version-mismatch",
                    f"Node {node.name} reports {what} version {reported or 'none'} instead of {desired}.",
                    f"Check `kubectl get node {node.name} -o wide`, and that the artifact contains this version.",
                )
        return self._find_stopped_service(expected.services) or self._find_missing_pods(expected.pods)

    def _find_stopped_service(self, names: Sequence[str]) -> FlexError | None:
        for name in names:
            unit = self.host.unit(name)
            if unit.active != "active":
                return diagnosis.service_failed_error(name, diagnosis.read_journal(self.host, unit))
        return None

    def _find_missing_pods(self, expected: Mapping[str, str]) -> FlexError | None:
        if not expected:
            return None
        try:
            there = {one["metadata"]["uid"]: one for one in nodes.pods(self.api, self.node)}
        except (ClusterError, ApiStatusError) as error:
            return ClusterError("pods-not-running", f"The pods of the node cannot be listed: {error}", retryable=True)
        stopped = [
            name
            for uid, name in expected.items()
            if uid in there and not has_ended(there[uid]) and not is_running(there[uid])
        ]
        if not stopped:
            return None
        return ClusterError(
            "pods-not-running",
            f"Pods that ran before the update are not running: {', '.join(sorted(stopped))}.",
            f"Check `kubectl describe pod -n {stopped[0].replace('/', ' ')}`.",
        )


def is_running(pod: Mapping[str, Any]) -> bool:
    status = pod.get("status", {})
    ready = any((one["type"], one["status"]) == ("Ready", "True") for one in status.get("conditions", []))
    return ready and status.get("phase") == "Running"


def has_ended(pod: Mapping[str, Any]) -> bool:
    """Returns whether the pod is terminating or has completed."""
    return bool(pod["metadata"].get("deletionTimestamp")) or pod.get("status", {}).get("phase") == "Succeeded"


def running_pods(pods: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Returns the running pods that are not meant to complete: uid -> namespace/name."""
    return {
        str(pod["metadata"]["uid"]): nodes.full_name(pod)
        for pod in pods
        if is_running(pod) and not has_ended(pod) and pod.get("spec", {}).get("restartPolicy", "Always") == "Always"
    }


def matches_version(reported: str, desired: str) -> bool:
    """Returns whether a reported version matches; ignores a leading `v` and suffixes added by builders."""
    pattern = rf"{re.escape(strip_version_prefix(desired))}(?:[-+~.][0-9A-Za-z.+~-]+)?"
    return not desired or re.fullmatch(pattern, strip_version_prefix(reported)) is not None


def strip_version_prefix(reported: str) -> str:
    """Returns the plain version: 2.4.2 for `containerd://v2.4.2`."""
    return reported.rpartition("://")[2].removeprefix("v")
