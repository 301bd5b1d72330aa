"""A machine becomes a node: the whole way on one page."""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from aks_flex_node.agent import pods
from aks_flex_node.agent.components import agent, kubelet
from aks_flex_node.agent.components.sequence import SEQUENCE
from aks_flex_node.agent.engine import state
from aks_flex_node.agent.engine.state import Phase
from aks_flex_node.agent.recovering import recover
from aks_flex_node.agent.watching import Watcher
from aks_flex_node.errors import FlexError
from aks_flex_node.host.actions import RestartUnit, StartUnit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from aks_flex_node.agent.cluster.nodes import Node
    from aks_flex_node.agent.cluster.proof import Proof
    from aks_flex_node.agent.engine.component import Component
    from aks_flex_node.agent.engine.engine import Engine
    from aks_flex_node.agent.machine import Machine
    from aks_flex_node.host.actions import Action


KUBELET = "kubelet.service"


@dataclass(frozen=True)
class Stage:
    """What has to be there before there can be a node: a machine that Azure Arc knows, a tunnel to the cluster."""

    name: str
    title: str
    begins: Phase
    done: Phase
    failed: Phase
    run: Callable[[], None]


@dataclass
class Join:
    engine: Engine
    proof: Proof | None  # none for an image: nothing runs there that could be proven
    watcher: Watcher = field(default_factory=Watcher)
    ahead: Sequence[Stage] = ()
    look_again: Callable[[], Machine] | None = None  # at the machine, when stages have changed its ways
    introduce: Callable[[], None] | None = None  # to whoever lets this node into the cluster
    seconds: dict[str, float] = field(default_factory=dict)
    _given: tuple[str, ...] = ()  # the addresses that components have been told of

    @property
    def state_file(self) -> str:
        return f"{self.engine.config.paths.data_dir}/state.json"

    def run(self, components: Sequence[Component] = SEQUENCE) -> Node | None:
        """Do what is missing, prove that the node works, and remember it."""
        engine = self.engine
        before = state.read(engine.host, self.state_file)
        begin(engine, self.watcher)
        self._remember(self.ahead[0].begins if self.ahead else Phase.NODE_BOOTSTRAPPING)
        with self._remembered("artifacts"):
            engine.prepare(components)
        self._go_ahead()
        for component in components:
            with self._step(component.name, component.title):
                if component.name == kubelet.COMPONENT.name and self.introduce:
                    self.introduce()
                engine.apply(component)
        node = self._prove(components) if self._provable(components) else None
        engine.settle()
        if node is None and engine.host.live:
            self._remember(Phase(before.phase))
        else:
            self._remember(Phase.NODE_JOINED, pod_cidr=engine.machine.pod_cidr, address=engine.machine.address)
            engine.events.say("joined", f"Node {self._node} is ready", node=self._node, changes=len(engine.changed))
        return node

    def _go_ahead(self) -> None:
        """While programs are being fetched."""
        for stage in self.ahead:
            self._remember(stage.begins)
            with self._step(stage.name, stage.title, stage.failed):
                stage.run()
            self._remember(stage.done)
        if self.ahead and self.look_again:
            self.engine.machine = self.look_again()
        self._remember(Phase.NODE_BOOTSTRAPPING)

    def _provable(self, components: Sequence[Component]) -> bool:
        """Some components alone make no node, and there would be nothing to wait for."""
        makes_it = kubelet.COMPONENT in components
        ends_it = components[-1] is SEQUENCE[-1] and bool(self.engine.ledger.owned(kubelet.COMPONENT.name).services)
        return self.proof is not None and (makes_it or ends_it)

    def _prove(self, components: Sequence[Component]) -> Node:
        """Wait for the cluster to know the node, give it its network, and wait until it is Ready."""
        assert self.proof  # noqa: S101 - asked by the caller
        with self._step("proof", "the node is registered and Ready"):
            self._revive()
            self._give_network(self.proof.registered(), components)
            node = self.proof.ready(lambda node: self._give_network(node, components))
            self._label(node)
            return node

    def _revive(self) -> None:
        """A kubelet asks for a certificate and makes its Node when it starts, and not again when it has lost them."""
        started = any(isinstance(one, StartUnit | RestartUnit) and one.name == KUBELET for one in self.engine.changed)
        if not started and self.proof and self.proof.stuck():
            self.watcher.note("the kubelet has lost its certificate or its Node: it is started anew")
            self.engine.host.do(RestartUnit(KUBELET))

    def _label(self, node: Node) -> None:
        """A kubelet puts labels on its Node when it makes it; later changes are ours to bring there."""
        assert self.proof  # noqa: S101
        wanted = kubelet.labels(self.engine.config)
        known = state.read(self.engine.host, self.state_file)
        self.proof.label(node, wanted, frozenset(known.labels.split()))
        self._remember(Phase.NODE_BOOTSTRAPPING, labels=" ".join(sorted(wanted)))

    def _give_network(self, node: Node, components: Sequence[Component]) -> None:
        """The cluster gives a node its addresses some moments after it got to know it."""
        engine = self.engine
        if self._given == (node.pod_cidr,):
            return
        self._given = (node.pod_cidr,)
        engine.machine = replace(engine.machine, pod_cidr=node.pod_cidr or engine.machine.pod_cidr)
        self._remember(Phase.NODE_BOOTSTRAPPING, pod_cidr=engine.machine.pod_cidr)
        for component in components:
            if component.again:
                engine.apply(component)

    @property
    def _node(self) -> str:
        return self.engine.machine.node_name(self.engine.config)

    @contextmanager
    def _step(self, name: str, title: str, failed: Phase = Phase.NODE_FAILED) -> Iterator[None]:
        """Something that is watched from its begin to its end."""
        start, changes = time.monotonic(), len(self.engine.changed)
        self.watcher.begins(name, title)
        with self._remembered(name, failed):
            yield
        self.seconds[name] = time.monotonic() - start
        self.watcher.ends(name, len(self.engine.changed) - changes, self.seconds[name])

    @contextmanager
    def _remembered(self, name: str, failed: Phase = Phase.NODE_FAILED) -> Iterator[None]:
        """Something whose failure is kept, and shown by `status`."""
        try:
            yield
        except FlexError as error:
            self.watcher.fails(name, error)
            self._remember(failed, step=name, error=error.name, message=error.message)
            self.engine.events.say(
                "failed", error.message, "error", component=name, error=error.name, hint=error.hint
            )
            raise

    def _remember(self, phase: Phase, **changes: str) -> None:
        known = state.read(self.engine.host, self.state_file)
        state.write(self.engine.host, self.state_file, known.at(phase, node=self._node, **changes))


def begin(engine: Engine, watcher: Watcher) -> None:
    """Make the place where everything else is remembered; once more changes nothing."""
    if recover(engine):
        watcher.note("the ledger was lost: it is made anew by the marks on files")
    if not engine.ledger.exists:
        engine.ledger.note_found(pods.network_found(engine.host))
    engine.apply(agent.COMPONENT)


def differences(engine: Engine, components: Sequence[Component] = SEQUENCE) -> list[tuple[str, Action]]:
    """Everything that a run would do now: empty when the machine is as it should be."""
    return [(component.name, action) for component in components for action in engine.plan(component).actions]
