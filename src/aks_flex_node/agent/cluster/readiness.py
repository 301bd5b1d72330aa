"""Waits until a node works, within a time limit, and raises the real cause when it does not.

containerd runs, the kubelet is healthy, the Node is registered, the Node is Ready: each is waited for, and waiting
ends
as soon as it cannot help any more.
"""

from __future__ import annotations

import math
import time
import urllib.request
from dataclasses import dataclass, replace
from http.client import HTTPException
from typing import TYPE_CHECKING, Protocol

from aks_flex_node.agent.cluster import diagnosis, nodes
from aks_flex_node.agent.cluster.client import ApiClient, ApiStatusError, node_api, proxy_for_server
from aks_flex_node.agent.config.resolved import join_token, kubelet_auth, kubelet_credential_file
from aks_flex_node.errors import ClusterError, FlexError
from aks_flex_node.timestamps import format_utc

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from aks_flex_node.agent.cluster.nodes import ClusterNode
    from aks_flex_node.agent.config.models import NodeConfig
    from aks_flex_node.agent.config.resolved import KubeletAuth
    from aks_flex_node.host.host import Host

KUBELET_HEALTH_URL = "http://127.0.0.1:10248/healthz"
CHECK_SECONDS = 0.03
SERVICE_SECONDS = 60.0
DIAGNOSE_AFTER_SECONDS = 5.0  # how long a thing may be wrong before we look for a cause
STEADY_SECONDS = 5.0  # for so long must a kubelet have been up before we believe that it stays
SLOW_CHECK_SECONDS = 0.25


class NodeReadiness(Protocol):
    def needs_kubelet_restart(self) -> bool:
        """Whether a kubelet that was not started just now has to be, to get its certificate or its Node back."""
        ...

    def wait_registered(self) -> ClusterNode:
        """Wait until the cluster knows this node."""
        ...

    def wait_ready(self, seen: Callable[[ClusterNode], None]) -> ClusterNode:
        """Wait until the node is Ready, and show it each time that it is looked at."""
        ...

    def sync_labels(self, node: ClusterNode, wanted: Mapping[str, str], earlier: frozenset[str]) -> None:
        """Bring the labels of the Node up to date; `earlier` are those that we put there the last time."""
        ...


def is_kubelet_healthy() -> bool:
    """Whether the kubelet says that it is well. It is asked directly, whatever proxy leads out of this machine."""
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(
            KUBELET_HEALTH_URL, timeout=2
        ) as answer:
            return bool(answer.status == 200)
    except (OSError, HTTPException):
        return False


@dataclass(frozen=True)
class ReadinessEnvironment:
    """What the wait for readiness looks at besides the host."""

    healthy: Callable[[], bool] = is_kubelet_healthy
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    api: ApiClient | None = None  # made from the configuration when left out
    now: Callable[[], float] = time.time


class LiveNodeReadiness:
    def __init__(
        self,
        host: Host,
        config: NodeConfig,
        node: str,
        say: Callable[[str], None],
        environment: ReadinessEnvironment | None = None,
        seconds: float | None = None,
    ) -> None:
        """All of it may take `seconds`; when left out, each thing may take as long as a join may."""
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
        """Whether a kubelet that has run for a while lacks what it gets when it starts: a certificate, its Node."""
        if not self._has_certificate():
            return True
        try:
            return nodes.is_missing(self.api, self._node)
        except (ClusterError, ApiStatusError):
            return False  # nobody can tell now

    def wait_registered(self) -> ClusterNode:
        self._began = self._environment.now()  # what was said before is over
        self._until(self._containerd_runs, "containerd.service", SERVICE_SECONDS, "containerd is not running")
        self._say("containerd runs")
        self._until(self._kubelet_is_well, "kubelet.service", SERVICE_SECONDS, "the kubelet does not answer")
        self._say("the kubelet is well")
        if kubelet_auth(self._config) != "exec":
            self._until(self._has_certificate, "kubelet.service", self._seconds, "the cluster issued no certificate")
            self._say("the cluster issued a certificate")
        node = self._until(self._find, "kubelet.service", self._seconds, "the cluster does not know the node")
        assert isinstance(node, nodes.ClusterNode)  # noqa: S101 - _find gives nothing else
        self._say(f"node {self._node} is registered")
        if node.left:
            self._readmit()
        return node

    def wait_ready(self, seen: Callable[[ClusterNode], None]) -> ClusterNode:
        since = self._kubelet_started()

        def look() -> ClusterNode | None:
            node = self._find()
            if node:
                seen(node)
            return node if node and node.ready and node.reported >= since else None

        node = self._until(look, "kubelet.service", self._seconds, "the node does not get Ready")
        assert isinstance(node, nodes.ClusterNode)  # noqa: S101
        return node

    def wait_healthy(self, lacking: Callable[[ClusterNode], FlexError | None]) -> ClusterNode:
        """Wait until a kubelet that stays up reports a Ready Node of which nothing is lacking."""
        lack: list[FlexError] = []

        def look() -> ClusterNode | None:
            node = self._find() if self._is_steady() else None
            if node is None or not node.ready or node.reported < self._kubelet_started():
                return None
            lack[:] = [error] if (error := lacking(node)) else []
            return None if lack else node

        try:
            node = self._until(
                look, "kubelet.service", self._seconds, "the node does not get Ready", SLOW_CHECK_SECONDS
            )
        except FlexError as error:
            # Time is up, and all that is known of the kubelet is that nothing is wrong with it.
            raise (lack[0] if lack and error.name == "node-not-registered" else error) from None
        assert isinstance(node, nodes.ClusterNode)  # noqa: S101
        return node

    def local_problem(self) -> FlexError | None:
        """What is wrong on this machine itself, whatever the cluster says of it."""
        for unit, is_well, otherwise in (
            ("containerd.service", self._containerd_runs, "containerd is not running"),
            ("kubelet.service", self._environment.healthy, "the kubelet does not answer"),
        ):
            if not is_well():
                journal = diagnosis.read_journal(self._host, self._host.unit(unit), self._began)
                return self._cause(unit) or diagnosis.timeout_cause(unit, journal, otherwise, None)
        return None

    def _is_steady(self) -> bool:
        unit = self._host.unit("kubelet.service")
        return unit.active == "active" and self._environment.clock() - unit.started >= STEADY_SECONDS

    def sync_labels(self, node: ClusterNode, wanted: Mapping[str, str], earlier: frozenset[str]) -> None:
        try:
            if changed := nodes.sync_labels(self.api, node, wanted, earlier):
                self._say(f"labels of the node: {', '.join(changed)}")
        except (ApiStatusError, ClusterError) as error:
            self._say(f"the labels of the node could not be changed: {error}")
        if self._config.continuous_monitoring or self._config.provider.url:
            return  # its resource provider may change taints, and does
        for taint in self._config.node.taints:
            if (taint.key, taint.value, taint.effect) not in node.taints:
                argument = f"{taint.key}={taint.value}:{taint.effect}"
                self._say(f"a node takes taints only when it joins; type kubectl taint nodes {self._node} {argument}")

    def _readmit(self) -> None:
        try:
            nodes.readmit(self.api, self._node)
            self._say("it had left this cluster before, and is welcome again")
        except (ApiStatusError, ClusterError) as error:
            self._say(f"it is still cordoned from when it left: type kubectl uncordon {self._node} ({error})")

    def _kubelet_started(self) -> str:
        """When the kubelet that runs now was started: what a Node says of an earlier life proves nothing."""
        ago = time.clock_gettime(time.CLOCK_MONOTONIC) - self._host.unit("kubelet.service").started
        return format_utc(time.time() - ago)

    def _containerd_runs(self) -> bool:
        return self._host.unit("containerd.service").active == "active"

    def _kubelet_is_well(self) -> bool:
        if self._environment.healthy():
            return True
        # A kubelet that waits for its first certificate does not answer yet.
        return self._host.stat(self.certificate) is None and self._kubelet_runs()

    def _kubelet_runs(self) -> bool:
        unit = self._host.unit("kubelet.service")
        return unit.active == "active" and unit.restarts == 0

    def _has_certificate(self) -> bool:
        return self._host.stat(self.certificate) is not None

    def _find(self) -> ClusterNode | None:
        try:
            return nodes.find(self.api, self._node)
        except ApiStatusError:
            # A certificate of another day, of which the kubelet is about to ask for a new one; or a server that is
            # itself not well at the moment. Both may pass, and the time that we wait is bounded.
            return None
        except ClusterError as error:
            if error.retryable:
                return None
            raise

    def _until(
        self,
        look: Callable[[], ClusterNode | bool | None],
        unit: str,
        seconds: float,
        otherwise: str,
        tick: float = CHECK_SECONDS,
    ) -> ClusterNode | bool | None:
        """What `look` finds, as soon as it does; the cause, as soon as it is plain that it will not."""
        start = asked = self._environment.clock()
        end = min(start + seconds, self._end)
        while not (found := look()):
            now = self._environment.clock()
            if now - asked > DIAGNOSE_AFTER_SECONDS:
                asked = now
                if cause := self._cause(unit):
                    raise cause
            if now > end:
                raise self._timed_out(unit, end - start, otherwise)
            self._environment.sleep(tick)
        return found

    def _cause(self, unit: str) -> FlexError | None:
        """Why it will not come, if the unit's own words say so."""
        state = self._host.unit(unit)
        if state.is_stable(self._environment.clock()):
            state = replace(state, restarts=0)  # they were in another life
        lines = diagnosis.read_journal(self._host, state, self._began)  # what an earlier attempt said is over
        return diagnosis.find_fatal_cause(unit, state, lines, shows=self._join_auth())

    def _join_auth(self) -> KubeletAuth | None:
        """What the kubelet joins with; nothing for one which has a certificate by now, or whose token is gone."""
        auth = kubelet_auth(self._config)
        if auth == "certificate":
            return None if self._has_certificate() else auth
        return auth if auth == "exec" or join_token(self._config) else None

    def _unreachable(self) -> ClusterError | None:
        """Why the API server cannot be asked from here, if it cannot."""
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
        return diagnosis.timeout_cause(unit, journal, f"{otherwise}, after {seconds:.0f} s", node)
