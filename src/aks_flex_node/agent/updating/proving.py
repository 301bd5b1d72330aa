"""Proves that a node works after a change: all that a join proves, and that nothing was lost which ran before."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from aks_flex_node.agent.cluster import causes, nodes
from aks_flex_node.agent.cluster.api import Refused
from aks_flex_node.agent.cluster.proof import LiveProof
from aks_flex_node.agent.updating import trials
from aks_flex_node.errors import ClusterError, FlexError, MachineError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from aks_flex_node.agent.cluster.api import Api
    from aks_flex_node.agent.cluster.nodes import Node
    from aks_flex_node.agent.cluster.proof import World
    from aks_flex_node.agent.config.models import NodeConfig
    from aks_flex_node.host.host import Host

AWAY = frozenset(("api-server-unreachable", "api-server-unknown"))


class AwayError(ClusterError):
    """The API server is away, and this machine is well as far as it can tell by itself."""


@dataclass(frozen=True)
class Expected:
    """What is to be true besides that the node is Ready."""

    services: tuple[str, ...] = ()  # that were restarted
    kubelet: str = ""  # the versions that the Node is to show, where they matter
    runtime: str = ""
    pods: Mapping[str, str] = field(default_factory=dict)  # that are to run: uid -> namespace/name
    trial: bool = False


@dataclass(frozen=True)
class Proving:
    host: Host
    config: NodeConfig
    node: str
    api: Api
    world: World
    say: Callable[[str], None]

    def prove(self, expected: Expected) -> None:
        """Raise the cause when the node does not work in time; AwayError when nobody can tell."""
        try:
            self._prove(expected)
        except AwayError as error:
            # No version is to blame for that. It gets the same time once more.
            self.say(f"the node is well by itself, and the API server is waited for: {error.message}")
            self._prove(expected)

    def _prove(self, expected: Expected) -> None:
        seconds = float(self.config.update_policy.health_timeout_seconds)
        proof = LiveProof(self.host, self.config, self.node, self.say, self.world, seconds)
        try:
            proof.registered()
            if expected.trial:
                trials.start_container(self.host, self.config, self.say)
            proof.shows(lambda node: self._lacking(node, expected))
        except ClusterError as error:
            if error.name not in AWAY:
                raise
            if unwell := proof.unwell():
                raise unwell from None
            raise AwayError(error.name, error.message, error.hint, again=True) from None

    def _lacking(self, node: Node, expected: Expected) -> FlexError | None:
        for what, shown, wanted in (
            ("kubelet", node.version, expected.kubelet),
            ("container runtime", node.runtime, expected.runtime),
        ):
            if not is_version(shown, wanted):
                return ClusterError(
                    "version-not-reported",
                    f"Node {node.name} does not show the version of its {what} that it should: {shown or 'none'} "
                    f"instead of {wanted}.",
                    f"Look at `kubectl get node {node.name} -o wide`: is the artifact what its name says?",
                )
        return self._resting_service(expected.services) or self._missing_pods(expected.pods)

    def _resting_service(self, names: Sequence[str]) -> FlexError | None:
        for name in names:
            unit = self.host.unit(name)
            if unit.active != "active":
                words, short = causes.journal(self.host, unit), name.removesuffix(".service")
                message = f"{short} does not stay up: {causes.worst_line(words)}"
                return MachineError("service-failed", message, f"Look at `journalctl -u {short} -n 50`.")
        return None

    def _missing_pods(self, wanted: Mapping[str, str]) -> FlexError | None:
        if not wanted:
            return None
        try:
            there = {one["metadata"]["uid"]: one for one in nodes.pods(self.api, self.node)}
        except (ClusterError, Refused) as error:
            return ClusterError("pods-not-running", f"Nobody can tell whether its pods run: {error}", again=True)
        gone = [
            name for uid, name in wanted.items() if uid in there and not ended(there[uid]) and not runs(there[uid])
        ]
        if not gone:
            return None
        return ClusterError(
            "pods-not-running",
            f"Pods that ran before do not run again: {', '.join(sorted(gone))}.",
            f"Look at `kubectl describe pod -n {gone[0].replace('/', ' ')}`.",
        )


def runs(pod: Mapping[str, Any]) -> bool:
    status = pod.get("status", {})
    ready = any((one["type"], one["status"]) == ("Ready", "True") for one in status.get("conditions", []))
    return ready and status.get("phase") == "Running"


def ended(pod: Mapping[str, Any]) -> bool:
    """Whether it was told to go, or has done its work."""
    return bool(pod["metadata"].get("deletionTimestamp")) or pod.get("status", {}).get("phase") == "Succeeded"


def running(pods: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Those that run and are meant to run for ever."""
    return {
        str(pod["metadata"]["uid"]): nodes.full_name(pod)
        for pod in pods
        if runs(pod) and not ended(pod) and pod.get("spec", {}).get("restartPolicy", "Always") == "Always"
    }


def is_version(shown: str, wanted: str) -> bool:
    """Whether a Node shows a version; builders put words of their own behind it, and some a `v` before it."""
    pattern = rf"{re.escape(plain_version(wanted))}(?:[-+~.][0-9A-Za-z.+~-]+)?"
    return not wanted or re.fullmatch(pattern, plain_version(shown)) is not None


def plain_version(shown: str) -> str:
    """`containerd://v2.4.2` is 2.4.2."""
    return shown.rpartition("://")[2].removeprefix("v")
