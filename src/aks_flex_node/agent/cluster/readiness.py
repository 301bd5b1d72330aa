"""Waits until the node is Ready, within a time limit, and raises the cause when it is not.

Waits for containerd, the kubelet, the Node's registration and its Ready condition in turn. Stops early when a
diagnosis shows that waiting cannot help.
"""

from __future__ import annotations

import math
import time
import urllib.request
from dataclasses import replace
from http.client import HTTPException
from typing import TYPE_CHECKING, TypeVar

from aks_flex_node.agent.cluster import diagnosis, nodes
from aks_flex_node.agent.cluster.client import ApiClient, ApiStatusError, node_api, proxy_for_server
from aks_flex_node.agent.cluster.node_health import has_kubelet_credential
from aks_flex_node.agent.config.resolved import KubeletAuth, join_token, kubelet_auth, kubelet_credential_file
from aks_flex_node.errors import ClusterError, FlexError
from aks_flex_node.lean_dataclass import frozen
from aks_flex_node.timestamps import format_utc

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from aks_flex_node.agent.cluster.nodes import ClusterNode
    from aks_flex_node.host.host import Host
    from aks_flex_node.settings.models import NodeConfig

Seen = TypeVar("Seen")
KUBELET_HEALTH_URL = "http://127.0.0.1:10248/healthz"
CHECK_SECONDS = 0.03
SERVICE_SECONDS = 60.0
DIAGNOSE_AFTER_SECONDS = 5.0  # interval between diagnoses while waiting
NOTE_SECONDS = 20.0  # between two lines that say what a join waits for
STEADY_SECONDS = 5.0  # uptime after which a kubelet counts as stable
REGISTRATION_SECONDS = 60.0  # that a kubelet has to register its Node
SLOW_CHECK_SECONDS = 0.25
MAX_CHECK_SECONDS = 1.0
BACKOFF_DIVISOR = 20.0  # after this many seconds, checks are one second apart


def is_kubelet_healthy() -> bool:
    """Returns whether the kubelet's health endpoint reports success. Ignores proxy settings."""
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(
            KUBELET_HEALTH_URL, timeout=2
        ) as answer:
            return bool(answer.status == 200)
    except (OSError, HTTPException):
        return False


@frozen
class ReadinessEnvironment:
    """Inputs of the readiness check besides the host: kubelet health, clocks and API client."""

    healthy: Callable[[], bool] = is_kubelet_healthy
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    api: ApiClient | None = None  # created from the configuration by default
    now: Callable[[], float] = time.time


class NodeReadiness:
    def __init__(
        self,
        host: Host,
        config: NodeConfig,
        node: str,
        say: Callable[[str], None],
        environment: ReadinessEnvironment | None = None,
        seconds: float | None = None,
    ) -> None:
        """Limits the whole wait to `seconds`; by default, limits each wait to the join timeout."""
        self._host = host
        self._config = config
        self._node = node
        self._say = say
        self._environment = environment or ReadinessEnvironment()
        self._api = self._environment.api
        self._began = 0.0
        self._seconds = config.agent.join_seconds if seconds is None else seconds
        self._end = math.inf if seconds is None else self._environment.clock() + seconds

    @property
    def certificate(self) -> str:
        return kubelet_credential_file(self._config)

    @property
    def api(self) -> ApiClient:
        if self._api is None:
            self._api = node_api(self._config)
        return self._api

    def needs_kubelet_restart(self) -> bool:
        """Returns whether the kubelet lacks its certificate or Node, which it gets only when it starts."""
        return not self._has_certificate() or self.is_node_missing()

    def is_node_missing(self) -> bool:
        """Returns whether the cluster responds that the Node does not exist; False also if that is unknown now."""
        try:
            return nodes.is_missing(self.api, self._node)
        except ClusterError:
            return False

    def wait_registered(self, lost_seconds: float = math.inf) -> ClusterNode:
        """Waits until the Node is registered.

        Raises node-not-registered if the Node is missing for longer than `lost_seconds` although the running kubelet
        has had time to register it: someone deleted it, and the kubelet registers it again only when it starts.
        """
        self._began = self._environment.now()  # ignore earlier log lines
        self._until(self._containerd_runs, "containerd.service", SERVICE_SECONDS, "containerd did not start")
        self._say("containerd is running")
        self._until(self._kubelet_is_well, "kubelet.service", SERVICE_SECONDS, "the kubelet did not become healthy")
        self._say("the kubelet is healthy")
        if kubelet_auth(self._config) != "exec":
            self._until(
                self._has_certificate, "kubelet.service", self._seconds, "the cluster did not issue a certificate"
            )
            self._say("the cluster issued a certificate")
        missing_since: list[float] = []

        def look() -> ClusterNode | None:
            node = self._find()
            if node or math.isinf(lost_seconds) or not self._is_deleted():  # a join starts no program for each look
                missing_since.clear()
            elif not missing_since:
                missing_since.append(self._environment.clock())
            elif self._environment.clock() - missing_since[0] > lost_seconds and self._has_had_time_to_register():
                raise self._deleted_error()
            return node

        node = self._until(look, "kubelet.service", self._seconds, "the node was not registered")
        self._say(f"node {self._node} is registered")
        if node.left:
            try:
                nodes.uncordon_after_rejoin(self.api, self._node)
                self._say("node uncordoned: it had left this cluster before")
            except (ApiStatusError, ClusterError) as error:
                self._say(f"the node is still cordoned; run kubectl uncordon {self._node} ({error})")
        return node

    def wait_ready(self, seen: Callable[[ClusterNode], None]) -> ClusterNode:
        """Waits until the node is Ready; calls `seen` with each observed Node."""
        since = self._kubelet_started()

        def look() -> ClusterNode | None:
            node = self._find()
            if node:
                seen(node)
            return node if node and node.ready and node.reported >= since else None

        return self._until(look, "kubelet.service", self._seconds, "the node did not become Ready")

    def wait_healthy(self, lacking: Callable[[ClusterNode], FlexError | None]) -> ClusterNode:
        """Waits until a stable kubelet reports a Ready Node for which `lacking` returns no error."""
        lack: list[FlexError] = []

        def look() -> ClusterNode | None:
            node = self._find() if self._is_steady() else None
            if node is None and self._is_deleted():
                raise self._deleted_error()
            if node is None or not node.ready or node.reported < self._kubelet_started():
                return None
            lack[:] = [error] if (error := lacking(node)) else []
            return None if lack else node

        try:
            return self._until(
                look, "kubelet.service", self._seconds, "the node did not become Ready", SLOW_CHECK_SECONDS
            )
        except FlexError as error:
            # On a timeout without a known cause, report what the Node lacks.
            raise (lack[0] if lack and error.name == "node-not-registered" else error) from None

    def _is_deleted(self) -> bool:
        """Returns whether a Node that was registered before does not exist any more."""
        return self._is_steady() and self.is_node_missing()

    def _deleted_error(self) -> ClusterError:
        return ClusterError(
            "node-not-registered",
            f"Node {self._node} was deleted from the cluster while the agent waited for it.",
            "No action required: the daemon registers the Node again.",
            retryable=True,
        )

    def local_problem(self) -> FlexError | None:
        """Returns the error of containerd or the kubelet on this machine, independent of the cluster, or None."""
        for unit, is_well, otherwise in (
            ("containerd.service", self._containerd_runs, "containerd is not running"),
            ("kubelet.service", self._environment.healthy, "the kubelet is not healthy"),
        ):
            if not is_well():
                journal = diagnosis.read_journal(self._host, self._host.unit(unit), self._began)
                return self._cause(unit) or diagnosis.timeout_cause(unit, journal, otherwise, None)
        return None

    def _has_had_time_to_register(self) -> bool:
        unit = self._host.unit("kubelet.service")
        return self._environment.clock() - unit.started >= REGISTRATION_SECONDS

    def _is_steady(self) -> bool:
        unit = self._host.unit("kubelet.service")
        return unit.active == "active" and self._environment.clock() - unit.started >= STEADY_SECONDS

    def sync_labels(self, node: ClusterNode, wanted: Mapping[str, str], earlier: frozenset[str]) -> None:
        """Updates the labels of the Node; `earlier` are those that the agent set last time."""
        try:
            if changed := nodes.sync_labels(self.api, node, wanted, earlier):
                self._say(f"node labels updated: {', '.join(changed)}")
        except (ApiStatusError, ClusterError) as error:
            self._say(f"node labels could not be updated: {error}")
        if self._config.continuous_monitoring or self._config.provider.url:
            return  # the resource provider manages the taints
        for taint in self._config.node.taints:
            if (taint.key, taint.value, taint.effect) not in node.taints:
                argument = f"{taint.key}={taint.value}:{taint.effect}"
                self._say(f"taints are set only at registration; run kubectl taint nodes {self._node} {argument}")

    def _kubelet_started(self) -> str:
        """Returns the start time of the running kubelet. Older heartbeats of the Node do not count."""
        ago = time.clock_gettime(time.CLOCK_MONOTONIC) - self._host.unit("kubelet.service").started
        return format_utc(time.time() - ago)

    def _containerd_runs(self) -> bool:
        return self._host.unit("containerd.service").active == "active"

    def _kubelet_is_well(self) -> bool:
        if self._environment.healthy():
            return True
        # A kubelet that waits for its first certificate does not serve the health endpoint yet.
        unit = self._host.unit("kubelet.service")
        return self._host.stat(self.certificate) is None and unit.active == "active" and unit.restarts == 0

    def _has_certificate(self) -> bool:
        return has_kubelet_credential(self._host, self._config)

    def _find(self) -> ClusterNode | None:
        try:
            return nodes.find(self.api, self._node)
        except ApiStatusError:
            # An old certificate that the kubelet is about to renew, or a temporary server error. Both may resolve
            # themselves, and the wait is limited.
            return None
        except ClusterError as error:
            if error.retryable:
                return None
            raise

    def _until(
        self,
        look: Callable[[], Seen | None],
        unit: str,
        seconds: float,
        otherwise: str,
        tick: float = CHECK_SECONDS,
    ) -> Seen:
        """Polls `look` until it returns a result; raises the cause as soon as one is known, or on timeout."""
        start = diagnosed = noted = self._environment.clock()
        end = min(start + seconds, self._end)
        while not (found := look()):
            now = self._environment.clock()
            if now - diagnosed > DIAGNOSE_AFTER_SECONDS:
                diagnosed = now
                if cause := self._cause(unit):
                    raise cause
            if now > end:
                raise self._timed_out(unit, end - start, otherwise)
            if now - noted > NOTE_SECONDS:
                noted = now
                lines = diagnosis.read_journal(self._host, self._host.unit(unit), self._began)
                text = f"waiting since {(now - start):.0f} s, at most {(end - start):.0f} s: {otherwise} yet"
                self._say(
                    f"{text}. Last log line of {unit}: {diagnosis.most_relevant_line(lines)}" if lines else text
                )
            self._environment.sleep(max(tick, min(MAX_CHECK_SECONDS, (now - start) / BACKOFF_DIVISOR)))
        return found

    def _cause(self, unit: str) -> FlexError | None:
        """Returns the fatal cause found in the unit's log, if any."""
        state = self._host.unit(unit)
        if state.is_stable(self._environment.clock()):
            state = replace(state, restarts=0)  # a stable unit has recovered from earlier restarts
        lines = diagnosis.read_journal(self._host, state, self._began)  # skip lines of earlier attempts
        return diagnosis.find_fatal_cause(unit, state, lines, shows=self._join_auth())

    def _join_auth(self) -> KubeletAuth | None:
        """Returns how the kubelet joins; None if it already has a certificate, or if its token is not configured."""
        auth = kubelet_auth(self._config)
        if auth == "certificate":
            return None if self._has_certificate() else auth
        return auth if auth == "exec" or join_token(self._config) else None

    def _unreachable(self) -> ClusterError | None:
        """Returns why the API server cannot be reached, or None if it responds."""
        authority = f"{self._config.paths.kubernetes.certs_dir}/ca.crt"
        try:
            server = self._config.node.kubelet.server_url or ""
            (self._environment.api or ApiClient(server, authority, proxy=proxy_for_server(self._config, server))).get(
                "/version"
            )
        except ClusterError as error:
            return error
        except ApiStatusError:
            return None
        return None

    def _timed_out(self, unit: str, seconds: float, otherwise: str) -> FlexError:
        state = self._host.unit(unit)
        journal = diagnosis.read_journal(self._host, state)
        if unreachable := self._unreachable():
            return unreachable
        node = self._find() if self._has_certificate() else None
        return diagnosis.timeout_cause(unit, journal, f"{otherwise} within {seconds:.0f} s", node)
