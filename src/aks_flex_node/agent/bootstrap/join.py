"""Joins this machine to the cluster: prerequisites, components in order, readiness."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import field, replace
from typing import TYPE_CHECKING

from aks_flex_node.agent.bootstrap import phases, pod_cleanup
from aks_flex_node.agent.cluster.node_health import KUBELET_UNIT
from aks_flex_node.agent.components import agent, credentials, kubelet, kubernetes
from aks_flex_node.agent.components.catalog import SEQUENCE
from aks_flex_node.agent.ledger_rebuild import rebuild_ledger
from aks_flex_node.agent.progress import ProgressReporter
from aks_flex_node.agent.reconcile import node_state
from aks_flex_node.agent.reconcile.node_state import NodeState, Phase
from aks_flex_node.errors import ClusterError, FlexError
from aks_flex_node.host.actions import RestartUnit
from aks_flex_node.lean_dataclass import dataclass, frozen
from aks_flex_node.timestamps import format_utc

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from aks_flex_node.agent.bootstrap.phases import JoinPhase
    from aks_flex_node.agent.cluster.nodes import ClusterNode
    from aks_flex_node.agent.cluster.readiness import NodeReadiness
    from aks_flex_node.agent.machine import Machine
    from aks_flex_node.agent.reconcile.component import Component
    from aks_flex_node.agent.reconcile.engine import Engine


@frozen
class PrerequisiteStage:
    """A stage that must complete before components are applied: Azure Arc registration or the VPN connection."""

    phase: JoinPhase
    started: Phase
    completed: Phase
    failed: Phase
    run: Callable[[], None]


@dataclass
class NodeJoin:
    engine: Engine
    readiness: NodeReadiness | None  # None for an image, where nothing runs
    progress: ProgressReporter = field(default_factory=ProgressReporter)
    prerequisites: Sequence[PrerequisiteStage] = ()
    reread_machine: Callable[[], Machine] | None = (
        None  # reads the machine again after the prerequisites changed its network
    )
    announce: Callable[[], None] | None = None  # announces the node to the provider that authorizes it
    renew_token: Callable[[], bool] | None = None  # replaces a used bootstrap token; returns whether it did
    _before: NodeState = field(default_factory=NodeState)  # at the start of the run
    _applied_pod_cidr: tuple[str, ...] = ()  # the pod CIDR that was already applied

    def run(self, components: Sequence[Component] = SEQUENCE) -> ClusterNode | None:
        """Applies all prerequisites and components, waits until the node is Ready, and records the result."""
        engine = self.engine
        self._before = before = node_state.load(engine.host, engine.config)
        initialize(engine, self.progress)
        self._save_state(self.prerequisites[0].started if self.prerequisites else Phase.NODE_BOOTSTRAPPING)
        with self._step(phases.ARTIFACTS.name, phases.ARTIFACTS.title, quiet=phases.ARTIFACTS.quiet):
            engine.prepare(components)
        self._run_prerequisites()
        # Whether the selected components result in a running node that can become Ready.
        includes_kubelet = kubelet.COMPONENT in components
        completes_node = components[-1:] == SEQUENCE[-1:] and bool(
            engine.ledger.owned(kubelet.COMPONENT.name).services
        )
        waits = self.readiness is not None and (includes_kubelet or completes_node)
        # A node needs no tools to be Ready, and their download must not delay its pod network.
        later = [component for component in components if waits and component is kubernetes.TOOLS_COMPONENT]
        for component in components:
            if component not in later:
                self._apply(component)
        node = self._wait_until_ready(components) if waits else None
        for component in later:
            self._apply(component)
        for action in credentials.unused_certificates(engine.host, engine.config) if node else ():
            engine.host.apply(action)
        engine.sync_to_disk()
        if node is None and engine.host.live:
            self._save_state(before.phase)
        else:
            machine = engine.machine
            self._save_state(
                Phase.NODE_JOINED, pod_cidr=machine.pod_cidr, address=machine.address, applied=format_utc()
            )
            engine.events.emit(
                "joined", f"Node {self._node} is Ready.", node=self._node, changes=len(engine.applied_actions)
            )
        return node

    def _apply(self, component: Component) -> None:
        with self._step(component.name, component.title):
            if component.name == kubelet.COMPONENT.name and self.announce:
                self.announce()
            self.engine.apply(component)

    def _run_prerequisites(self) -> None:
        """Runs the prerequisite stages while programs are downloaded in the background."""
        for stage in self.prerequisites:
            self._save_state(stage.started)
            with self._step(stage.phase.name, stage.phase.title, stage.failed):
                stage.run()
            self._save_state(stage.completed)
        if self.prerequisites and self.reread_machine:
            self.engine.machine = self.reread_machine()
        self._save_state(Phase.NODE_BOOTSTRAPPING)

    def _wait_until_ready(self, components: Sequence[Component]) -> ClusterNode:
        """Waits until the node is registered, applies its pod network, and waits until it is Ready."""
        assert self.readiness  # noqa: S101 - checked by the caller
        with self._step(phases.READINESS.name, phases.READINESS.title):
            # A kubelet requests a lost certificate, and creates a lost Node, only when it starts.
            started = any(one.started_unit == KUBELET_UNIT for one in self.engine.applied_actions)
            if not started and self.readiness.needs_kubelet_restart():
                self.progress.note("restarting the kubelet: its certificate or its Node is missing")
                self.engine.host.apply(RestartUnit(KUBELET_UNIT))
            self._apply_pod_network(self._wait_registered(self.readiness), components)
            node = self.readiness.wait_ready(lambda node: self._apply_pod_network(node, components))
            # The kubelet sets labels only when it creates the Node.
            desired = kubelet.labels(self.engine.config)
            state = node_state.load(self.engine.host, self.engine.config)
            self.readiness.sync_labels(node, desired, frozenset(state.labels.split()))
            self._save_state(Phase.NODE_BOOTSTRAPPING, labels=" ".join(sorted(desired)))
            return node

    def _wait_registered(self, readiness: NodeReadiness) -> ClusterNode:
        """Waits until the Node is registered. An earlier attempt may have used up the bootstrap token."""
        try:
            return readiness.wait_registered()
        except ClusterError as error:
            if error.name != "bootstrap-token-rejected" or not (self.renew_token and self.renew_token()):
                raise
        self.engine.host.apply(RestartUnit(KUBELET_UNIT))
        return readiness.wait_registered()

    def _apply_pod_network(self, node: ClusterNode, components: Sequence[Component]) -> None:
        """Applies the pod CIDR, which the cluster assigns shortly after the node is registered."""
        engine = self.engine
        if self._applied_pod_cidr == (node.pod_cidr,):
            return
        self._applied_pod_cidr = (node.pod_cidr,)
        engine.machine = replace(engine.machine, pod_cidr=node.pod_cidr or engine.machine.pod_cidr)
        self._save_state(Phase.NODE_BOOTSTRAPPING, pod_cidr=engine.machine.pod_cidr)
        for component in components:
            if component.reapply_after_join:
                engine.apply(component)

    @property
    def _node(self) -> str:
        return self.engine.machine.node_name(self.engine.config)

    @contextmanager
    def _step(
        self, name: str, title: str, failed: Phase = Phase.NODE_FAILED, *, quiet: bool = False
    ) -> Iterator[None]:
        """Reports a step. Records a failure in the state file, where `status` shows it, and in the event log."""
        try:
            with self.progress.step(name, title, self.engine.applied_actions, quiet=quiet):
                yield
        except FlexError as error:
            if (
                self._before.phase is Phase.NODE_JOINED
                and name != phases.READINESS.name
                and not self.engine.applied_actions
            ):
                node_state.save(self.engine.host, self.engine.config, self._before)  # the node is as it was
            else:
                self._save_state(failed, step=name, error=error.name, message=error.message)
            self.engine.events.emit(
                "failed", error.message, "error", component=name, error=error.name, hint=error.hint
            )
            raise

    def _save_state(self, phase: Phase, **changes: str) -> None:
        state = node_state.load(self.engine.host, self.engine.config)
        node_state.save(self.engine.host, self.engine.config, state.with_phase(phase, node=self._node, **changes))


def initialize(engine: Engine, progress: ProgressReporter) -> None:
    """Creates the agent's directories and the ledger. Idempotent."""
    if rebuild_ledger(engine):
        progress.note("ledger missing: rebuilding it from marked files")
    if not engine.ledger.exists:
        engine.ledger.record_found(pod_cleanup.existing_names(engine.host, engine.config))
    engine.apply(agent.COMPONENT)
