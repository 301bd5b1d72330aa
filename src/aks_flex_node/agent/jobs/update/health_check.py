"""The health check after an update: readiness, versions, services, the pods that ran before, and a container smoke
test.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from aks_flex_node.agent.cluster import diagnosis, nodes
from aks_flex_node.agent.cluster.client import ApiStatusError
from aks_flex_node.agent.cluster.readiness import LiveNodeReadiness
from aks_flex_node.errors import ClusterError, FlexError, MachineError
from aks_flex_node.host.actions import Run

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from aks_flex_node.agent.cluster.client import ApiClient
    from aks_flex_node.agent.cluster.nodes import ClusterNode
    from aks_flex_node.agent.cluster.readiness import ReadinessEnvironment
    from aks_flex_node.agent.config.models import NodeConfig
    from aks_flex_node.host.host import Host


CONTAINER_NAME = "aks-flex-node-trial"
CTR_SECONDS = 30.0


def run_container_smoke_test(host: Host, config: NodeConfig, say: Callable[[str], None]) -> None:
    """Start one from the image that every pod needs, and take it away again."""
    image = config.containerd.pause_image
    if image not in _run_ctr(host, config, "images", "list", "--quiet"):
        say(f"no container was started to try: {image} is not on this machine yet")
        return
    _remove_container(host, config)  # what a crash may have left
    runc = f"{config.paths.sbin_dir}/runc"
    arguments = ("run", "--detach", "--runc-binary", runc, "--cgroup", f"/{CONTAINER_NAME}", image, CONTAINER_NAME)
    try:
        host.apply(Run(_ctr_command(config, *arguments), "start a container to try", seconds=CTR_SECONDS))
    except MachineError as error:
        raise MachineError(
            "container-start-failed",
            f"No container can be started any more: {error.message}",
            "Look at `journalctl -u containerd -n 50`.",
        ) from error
    finally:
        _remove_container(host, config)
    say("a container was started to try, and works")


def _remove_container(host: Host, config: NodeConfig) -> None:
    if CONTAINER_NAME in _run_ctr(host, config, "tasks", "list", "--quiet"):
        why = "end the container that was tried"
        host.apply(Run(_ctr_command(config, "tasks", "delete", "--force", CONTAINER_NAME), why, seconds=CTR_SECONDS))
    if CONTAINER_NAME in _run_ctr(host, config, "containers", "list", "--quiet"):
        why = "take the container away that was tried"
        host.apply(Run(_ctr_command(config, "containers", "delete", CONTAINER_NAME), why, seconds=CTR_SECONDS))


def _run_ctr(host: Host, config: NodeConfig, *arguments: str) -> list[str]:
    return host.query(*_ctr_command(config, *arguments), seconds=CTR_SECONDS).out.split()


def _ctr_command(config: NodeConfig, *arguments: str) -> tuple[str, ...]:
    return (f"{config.paths.bin_dir}/ctr", "--namespace", "k8s.io", *arguments)


AWAY_ERRORS = frozenset(("api-server-unreachable", "api-server-name-not-resolved"))


class ApiServerAwayError(ClusterError):
    """The API server is away, and this machine is well as far as it can tell by itself."""


@dataclass(frozen=True)
class ExpectedHealth:
    """What is to be true besides that the node is Ready."""

    services: tuple[str, ...] = ()  # that were restarted
    kubelet: str = ""  # the versions that the Node is to show, where they matter
    runtime: str = ""
    pods: Mapping[str, str] = field(default_factory=dict)  # that are to run: uid -> namespace/name
    smoke_test: bool = False


@dataclass(frozen=True)
class HealthCheck:
    host: Host
    config: NodeConfig
    node: str
    api: ApiClient
    environment: ReadinessEnvironment
    say: Callable[[str], None]

    def run(self, expected: ExpectedHealth) -> None:
        """Raise the cause when the node does not work in time; AwayError when nobody can tell."""
        try:
            self._run_once(expected)
        except ApiServerAwayError as error:
            # No version is to blame for that. It gets the same time once more.
            self.say(f"the node is well by itself, and the API server is waited for: {error.message}")
            self._run_once(expected)

    def _run_once(self, expected: ExpectedHealth) -> None:
        seconds = float(self.config.update_policy.health_timeout_seconds)
        readiness = LiveNodeReadiness(self.host, self.config, self.node, self.say, self.environment, seconds)
        try:
            readiness.wait_registered()
            if expected.smoke_test:
                run_container_smoke_test(self.host, self.config, self.say)
            readiness.wait_healthy(lambda node: self._find_problem(node, expected))
        except ClusterError as error:
            if error.name not in AWAY_ERRORS:
                raise
            if unwell := readiness.local_problem():
                raise unwell from None
            raise ApiServerAwayError(error.name, error.message, error.hint, retryable=True) from None

    def _find_problem(self, node: ClusterNode, expected: ExpectedHealth) -> FlexError | None:
        for what, shown, wanted in (
            ("kubelet", node.version, expected.kubelet),
            ("container runtime", node.runtime, expected.runtime),
        ):
            if not matches_version(shown, wanted):
                return ClusterError(
                    "kubelet-version-mismatch",
                    f"Node {node.name} does not show the version of its {what} that it should: {shown or 'none'} "
                    f"instead of {wanted}.",
                    f"Look at `kubectl get node {node.name} -o wide`: is the artifact what its name says?",
                )
        return self._find_stopped_service(expected.services) or self._find_missing_pods(expected.pods)

    def _find_stopped_service(self, names: Sequence[str]) -> FlexError | None:
        for name in names:
            unit = self.host.unit(name)
            if unit.active != "active":
                journal, short = diagnosis.read_journal(self.host, unit), name.removesuffix(".service")
                message = f"{short} does not stay up: {diagnosis.most_telling_line(journal)}"
                return MachineError("service-failed", message, f"Look at `journalctl -u {short} -n 50`.")
        return None

    def _find_missing_pods(self, wanted: Mapping[str, str]) -> FlexError | None:
        if not wanted:
            return None
        try:
            there = {one["metadata"]["uid"]: one for one in nodes.pods(self.api, self.node)}
        except (ClusterError, ApiStatusError) as error:
            return ClusterError("pods-not-running", f"Nobody can tell whether its pods run: {error}", retryable=True)
        gone = [
            name
            for uid, name in wanted.items()
            if uid in there and not has_ended(there[uid]) and not is_running(there[uid])
        ]
        if not gone:
            return None
        return ClusterError(
            "pods-not-running",
            f"Pods that ran before do not run again: {', '.join(sorted(gone))}.",
            f"Look at `kubectl describe pod -n {gone[0].replace('/', ' ')}`.",
        )


def is_running(pod: Mapping[str, Any]) -> bool:
    status = pod.get("status", {})
    ready = any((one["type"], one["status"]) == ("Ready", "True") for one in status.get("conditions", []))
    return ready and status.get("phase") == "Running"


def has_ended(pod: Mapping[str, Any]) -> bool:
    """Whether it was told to go, or has done its work."""
    return bool(pod["metadata"].get("deletionTimestamp")) or pod.get("status", {}).get("phase") == "Succeeded"


def running_pods(pods: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Those that run and are meant to run for ever."""
    return {
        str(pod["metadata"]["uid"]): nodes.full_name(pod)
        for pod in pods
        if is_running(pod) and not has_ended(pod) and pod.get("spec", {}).get("restartPolicy", "Always") == "Always"
    }


def matches_version(shown: str, wanted: str) -> bool:
    """Whether a Node shows a version; builders put words of their own behind it, and some a `v` before it."""
    pattern = rf"{re.escape(strip_version_prefix(wanted))}(?:[-+~.][0-9A-Za-z.+~-]+)?"
    return not wanted or re.fullmatch(pattern, strip_version_prefix(shown)) is not None


def strip_version_prefix(shown: str) -> str:
    """`containerd://v2.4.2` is 2.4.2."""
    return shown.rpartition("://")[2].removeprefix("v")
