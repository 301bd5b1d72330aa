"""Operations of an update on this machine and its Node: stage, drain, apply, label, uncordon, health check."""

from __future__ import annotations

import contextlib
from dataclasses import field, replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from aks_flex_node.agent.cluster import nodes
from aks_flex_node.agent.cluster.client import ApiClient, ApiStatusError, node_api
from aks_flex_node.agent.cluster.node_health import KUBELET_UNIT, NODE_SERVICES
from aks_flex_node.agent.cluster.readiness import ReadinessEnvironment
from aks_flex_node.agent.components import agent, credentials, kubelet
from aks_flex_node.agent.components.catalog import SEQUENCE
from aks_flex_node.agent.job_records.update_journal import FailedUpdate, NodeBaseline
from aks_flex_node.agent.jobs.update import admission
from aks_flex_node.agent.jobs.update.health_check import ExpectedHealth, HealthCheck, running_pods
from aks_flex_node.agent.ledger_rebuild import rebuild_ledger
from aks_flex_node.agent.policy import read_policy
from aks_flex_node.agent.progress import ProgressReporter
from aks_flex_node.agent.reconcile import node_state
from aks_flex_node.agent.reconcile.node_state import Phase
from aks_flex_node.agent.reconcile.program_stager import ProgramStager
from aks_flex_node.errors import ClusterError
from aks_flex_node.host.actions import RestartUnit
from aks_flex_node.lean_dataclass import dataclass
from aks_flex_node.redaction import redact_output

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from aks_flex_node.agent.job_records.job_result import JobResult
    from aks_flex_node.agent.jobs.update.admission import ConfigChanges
    from aks_flex_node.agent.reconcile.component import Component
    from aks_flex_node.agent.reconcile.engine import Engine
    from aks_flex_node.agent.stored_config import StoredConfig
    from aks_flex_node.host.host import Host
    from aks_flex_node.settings.models import NodeConfig


@dataclass
class NodeOperations:
    host: Host
    engine_for: Callable[[NodeConfig], Engine]
    progress: ProgressReporter = field(default_factory=ProgressReporter)
    api_for: Callable[[NodeConfig], ApiClient] = node_api
    stager_for: Callable[[NodeConfig], ProgramStager] = ProgramStager
    environment: ReadinessEnvironment = field(default_factory=ReadinessEnvironment)
    now: Callable[[], datetime] = lambda: datetime.now(timezone.utc)
    env: Mapping[str, str] = field(default_factory=dict)
    components: Sequence[Component] = SEQUENCE

    @contextlib.contextmanager
    def open_engine(self, config: NodeConfig) -> Iterator[Engine]:
        """Opens an engine for a configuration, with a program stager and an intact ledger."""
        engine = self.engine_for(config)
        engine.stager = stager = self.stager_for(config)
        try:
            if rebuild_ledger(engine):
                self.progress.note("ledger missing: rebuilding it from marked files")
            engine.apply(agent.COMPONENT)
            yield engine
        finally:
            stager.close()

    def check_admission(
        self, current: StoredConfig, stored: StoredConfig, changes: ConfigChanges, failure: FailedUpdate | None
    ) -> JobResult | None:
        """Returns why a configuration cannot be applied at any time of the day, or None; permanent reasons before
        temporary ones. `failure` is the last update that was rolled back.
        """
        config, name = stored.config, self.node_name(current.config)
        desired_name = self.engine_for(config).machine.node_name(config)
        found = (
            admission.check_same_node(current.config, config, name, desired_name)
            or admission.check_paths(current.config, config)
            or admission.check_policy(read_policy(self.host), current.config, config)
            or admission.check_complete(config)
            or admission.check_not_failed_before(stored, failure)
            or admission.check_not_paused(config)
            or admission.check_downgrade(changes, config)
        )
        if not found and "kubernetes" in changes.components:
            found = admission.check_version_skew(config, self.server_version(current.config))
        return found

    def services_to_restart(self, engine: Engine) -> tuple[str, ...]:
        """Returns the services that applying the configuration would start or restart."""
        actions = [action for component in self.components for action in engine.plan(component).actions]
        return tuple(sorted({one.started_unit for one in actions if one.started_unit}))

    def changed_services(self, current: NodeConfig, desired: NodeConfig) -> tuple[str, ...]:
        """Returns the node's services whose inputs differ between two configurations."""
        machine = self.engine_for(current).machine
        before, after = (
            {
                name: digest
                for component in self.components
                for name, digest in component.desired(config, machine).fingerprints.items()
            }
            for config in (current, desired)
        )
        return tuple(name for name in NODE_SERVICES if before.get(name) != after.get(name))

    def is_node_missing(self, config: NodeConfig) -> bool:
        """Returns whether the cluster responds that the Node does not exist."""
        return nodes.is_missing(*self._node(config))

    def node_uid(self, config: NodeConfig) -> str:
        """Returns the UID of the Node; empty if it is unknown."""
        with contextlib.suppress(ClusterError, ApiStatusError):
            node = nodes.find(*self._node(config))
            return node.uid if node else ""
        return ""

    def register_again(self, config: NodeConfig, restarted: Sequence[str]) -> None:
        """Restarts a kubelet that the update did not restart if its Node was deleted: it registers when it starts."""
        if KUBELET_UNIT in restarted or not restarted:
            return
        with contextlib.suppress(ClusterError):  # the health check reports the cause
            if self.is_node_missing(config):
                self.host.apply(RestartUnit(KUBELET_UNIT))

    def stage(self, engine: Engine) -> None:
        with self.step("staging", "artifacts downloaded and verified"):
            engine.stage(self.components)

    def apply(self, engine: Engine) -> None:
        for component in self.components:
            with self.step(component.name, component.title, engine):
                engine.apply(component)

    def check_health(self, engine: Engine, expected: ExpectedHealth) -> None:
        with self.step("health-check", "node healthy"):
            api, name = self._node(engine.config)
            environment = replace(self.environment, api=api)
            HealthCheck(self.host, engine.config, name, api, environment, self.progress.note).run(expected)

    def snapshot(self, config: NodeConfig, *, drained: bool) -> NodeBaseline:
        """Records versions and running pods of the node before any change."""
        api, name = self._node(config)
        with explain_refusal():
            node = nodes.find(api, name)
            pods = [pod for pod in nodes.pods(api, name) if not (drained and nodes.is_evictable(pod))]
        if node is None:
            raise ClusterError(
                "node-not-registered",
                f"Node {name} does not exist in the cluster, so its health cannot be checked.",
                "No action required: the daemon recovers the Node and then continues the update.",
                retryable=True,
            )
        return NodeBaseline(node.version, node.runtime, running_pods(pods))

    def drain(self, config: NodeConfig, seconds: float) -> None:
        """Cordons the node and evicts its pods; raises ClusterError when pods remain after the time limit."""
        api, name = self._node(config)
        with self.step("drain", "pods evicted"), explain_refusal():
            node = nodes.find(api, name)
            if node is None and nodes.is_missing(api, name):
                return  # drained and deleted already
            if node is not None and not node.cordoned:
                nodes.cordon_for_update(api, name)
            clock, sleep = self.environment.clock, self.environment.sleep
            left = nodes.drain_pods(api, name, seconds, self.progress.note, clock=clock, sleep=sleep)
            if left:
                remaining = "; ".join(f"{pod}: {why}" if why else pod for pod, why in left.items())
                raise ClusterError(
                    "drain-timed-out",
                    f"Pods were not evicted within {seconds:.0f} s, and nothing was changed. {remaining}",
                    "Change the disruption budget, increase `updatePolicy.drainTimeoutSeconds`, or set "
                    "`updatePolicy.drain` to false.",
                    retryable=True,
                )

    def uncordon(self, config: NodeConfig) -> None:
        with explain_refusal():
            if nodes.uncordon(*self._node(config)):
                self.progress.note("Node uncordoned.")

    def label(self, config: NodeConfig) -> None:
        """Applies the labels to the Node. Labels that a node must not set on itself are skipped with a note."""
        (api, name), known = self._node(config), self.node_state(config)
        desired = kubelet.labels(config)
        with explain_refusal():
            node = nodes.find(api, name)
            try:
                changed = nodes.sync_labels(api, node, desired, frozenset(known.labels.split())) if node else []
            except ApiStatusError as refusal:
                if refusal.status not in {403, 422}:
                    raise
                self.progress.note(f"node labels could not be updated: {refusal.message}")
                return
        if changed:
            self.progress.note(f"node labels updated: {', '.join(changed)}")
        self.save_state(config, labels=" ".join(sorted(desired)))

    def report_rollback(self, config: NodeConfig, reason: str, message: str) -> None:
        """Writes the cause of a rollback to the Node, if the node may."""
        words = "".join(part[:1].upper() + part[1:] for part in reason.split("-"))
        with contextlib.suppress(ClusterError, ApiStatusError):
            text = redact_output(message, queries=True)
            nodes.report_rollback(*self._node(config), words, text)

    def clear_rollback(self, config: NodeConfig) -> None:
        with contextlib.suppress(ClusterError, ApiStatusError):
            nodes.clear_rollback(*self._node(config))

    def remove_unused_certificates(self, config: NodeConfig) -> None:
        for action in credentials.unused_certificates(self.host, config):
            self.host.apply(action)

    def server_version(self, config: NodeConfig) -> str:
        with explain_refusal():
            return str(self.api_for(config).get("/version").get("gitVersion", ""))

    def _node(self, config: NodeConfig) -> tuple[ApiClient, str]:
        """Returns a client of the API server, and the name of the Node."""
        return self.api_for(config), self.node_name(config)

    def node_name(self, config: NodeConfig) -> str:
        """Returns the name with which the machine joined, even if the host name has changed since."""
        return self.node_state(config).node or self.engine_for(config).machine.node_name(config)

    def node_state(self, config: NodeConfig) -> node_state.NodeState:
        return node_state.load(self.host, config)

    def save_state(self, config: NodeConfig, **changes: str) -> None:
        known = self.node_state(config)
        changed = any(getattr(known, name) != value for name, value in changes.items())
        if changed or known.phase is not Phase.NODE_JOINED:
            node_state.save(self.host, config, known.with_phase(Phase.NODE_JOINED, **changes))

    def step(self, name: str, title: str, engine: Engine | None = None) -> AbstractContextManager[None]:
        return self.progress.step(name, title, engine.applied_actions if engine else None)


@contextlib.contextmanager
def explain_refusal() -> Iterator[None]:
    """Converts an API error of a request that every node is allowed to make into a retryable ClusterError."""
    try:
        yield
    except ApiStatusError as refusal:
        raise ClusterError(
            "api-server-forbidden",
            f"The API server rejected a request of this node: {refusal.message} (status {refusal.status}).",
            "The daemon retries. If the error persists, check the node's certificate with `aks-flex-node status`.",
            retryable=True,
        ) from refusal
