"""What an update does with this machine and its Node, whichever configuration it is about."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from aks_flex_node.agent.cluster import nodes
from aks_flex_node.agent.cluster.api import Refused
from aks_flex_node.agent.cluster.own import node_api
from aks_flex_node.agent.cluster.proof import World
from aks_flex_node.agent.components import agent, kubelet
from aks_flex_node.agent.components.sequence import SEQUENCE
from aks_flex_node.agent.engine import state
from aks_flex_node.agent.engine.state import Phase
from aks_flex_node.agent.engine.workshop import StoreWorkshop
from aks_flex_node.agent.recovering import recover
from aks_flex_node.agent.updating.journals import Before
from aks_flex_node.agent.updating.proving import Proving, running
from aks_flex_node.agent.watching import Watcher
from aks_flex_node.errors import ClusterError, FlexError
from aks_flex_node.host.actions import RestartUnit, StartUnit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from aks_flex_node.agent.cluster.api import Api
    from aks_flex_node.agent.config.models import NodeConfig
    from aks_flex_node.agent.engine.component import Component
    from aks_flex_node.agent.engine.engine import Engine
    from aks_flex_node.agent.engine.workshop import Workshop
    from aks_flex_node.agent.updating.proving import Expected
    from aks_flex_node.host.host import Host


def _now() -> datetime:
    return datetime.now(timezone.utc)


@dataclass
class Workbench:
    host: Host
    engine_for: Callable[[NodeConfig], Engine]
    watcher: Watcher = field(default_factory=Watcher)
    api_for: Callable[[NodeConfig], Api] = node_api
    workshop_for: Callable[[NodeConfig], Workshop] = StoreWorkshop
    world: World = field(default_factory=World)
    now: Callable[[], datetime] = _now
    env: Mapping[str, str] = field(default_factory=dict)
    components: Sequence[Component] = SEQUENCE

    @contextlib.contextmanager
    def opened(self, config: NodeConfig) -> Iterator[Engine]:
        """An engine for a configuration, with all that it needs."""
        engine = self.engine_for(config)
        engine.workshop = workshop = self.workshop_for(config)
        try:
            if recover(engine):
                self.watcher.note("the ledger was lost: it is made anew by the marks on files")
            engine.apply(agent.COMPONENT)
            yield engine
        finally:
            workshop.close()

    def restarts(self, engine: Engine) -> tuple[str, ...]:
        """The services that would be restarted."""
        actions = [action for component in self.components for action in engine.plan(component).actions]
        return tuple(sorted({one.name for one in actions if isinstance(one, RestartUnit | StartUnit)}))

    def stage(self, engine: Engine) -> None:
        with self.step("staging", "everything that is needed is here and verified"):
            engine.stage(self.components)

    def apply(self, engine: Engine) -> None:
        for component in self.components:
            with self.step(component.name, component.title, engine):
                engine.apply(component)

    def prove(self, engine: Engine, expected: Expected) -> None:
        with self.step("proof", "the node works"):
            self._proving(engine.config).prove(expected)

    def _proving(self, config: NodeConfig) -> Proving:
        api = self.api_for(config)
        name, world = self.name(config), replace(self.world, api=api)
        return Proving(self.host, config, name, api, world, self.watcher.note)

    def before(self, config: NodeConfig, *, drained: bool) -> Before:
        """How the node is, before anything is touched."""
        api, name = self.api_for(config), self.name(config)
        with answered():
            node = nodes.find(api, name)
            pods = [pod for pod in nodes.pods(api, name) if not (drained and nodes.movable(pod))]
        if node is None:
            raise ClusterError(
                "node-not-registered",
                f"The cluster does not know node {name}, so nothing can be proven on it.",
                "The agent brings the Node back by itself; then the update goes on.",
                again=True,
            )
        return Before(node.version, node.runtime, running(pods))

    def drain(self, config: NodeConfig, seconds: float) -> None:
        """Let no pods come, and move away those that are here; raises when they do not go in time."""
        api, name = self.api_for(config), self.name(config)
        with self.step("drain", "pods are moved away"), answered():
            node = nodes.find(api, name)
            if node is not None and not node.cordoned:
                nodes.cordon_for_update(api, name)
            world = self.world
            stayed = nodes.move_pods(api, name, seconds, self.watcher.note, clock=world.clock, sleep=world.sleep)
            if stayed:
                words = "; ".join(f"{pod}: {why}" if why else pod for pod, why in stayed.items())
                raise ClusterError(
                    "drain-timed-out",
                    f"These pods did not go within {seconds:.0f} s, so nothing was changed. {words}",
                    "Give them more room or time: a budget that lets one go, updatePolicy.drainTimeoutSeconds, or "
                    "updatePolicy.drain: false.",
                    again=True,
                )

    def uncordon(self, config: NodeConfig) -> None:
        with answered():
            if nodes.uncordon(self.api_for(config), self.name(config)):
                self.watcher.note("pods may come again")

    def label(self, config: NodeConfig) -> None:
        """Bring labels to the Node. What a node may not say of itself is left to others."""
        api, known = self.api_for(config), self.known(config)
        wanted = kubelet.labels(config)
        with answered():
            node = nodes.find(api, self.name(config))
            try:
                changed = nodes.bring_labels(api, node, wanted, frozenset(known.labels.split())) if node else []
            except Refused as refusal:
                if refusal.status not in {403, 422}:
                    raise
                self.watcher.note(f"the labels of the node could not be changed: {refusal.message}")
                return
        if changed:
            self.watcher.note(f"labels of the node: {', '.join(changed)}")
        self.remember(config, labels=" ".join(sorted(wanted)))

    def server_version(self, config: NodeConfig) -> str:
        with answered():
            return str(self.api_for(config).get("/version").get("gitVersion", ""))

    def name(self, config: NodeConfig) -> str:
        """By which the machine joined, whatever it is called now."""
        return self.known(config).node or self.engine_for(config).machine.node_name(config)

    def known(self, config: NodeConfig) -> state.State:
        return state.read(self.host, _state_file(config))

    def remember(self, config: NodeConfig, **changes: str) -> None:
        known = self.known(config)
        if replace(known, **changes) != known or known.phase != Phase.NODE_JOINED.value:
            state.write(self.host, _state_file(config), known.at(Phase.NODE_JOINED, **changes))

    @contextlib.contextmanager
    def step(self, name: str, title: str, engine: Engine | None = None) -> Iterator[None]:
        """Something that is watched from its begin to its end."""
        start, changes = time.monotonic(), len(engine.changed) if engine else 0
        self.watcher.begins(name, title)
        try:
            yield
        except FlexError as error:
            self.watcher.fails(name, error)
            raise
        self.watcher.ends(name, len(engine.changed) - changes if engine else None, time.monotonic() - start)


def _state_file(config: NodeConfig) -> str:
    return f"{config.paths.data_dir}/state.json"


@contextlib.contextmanager
def answered() -> Iterator[None]:
    """A server that answers, and says no to what a node may do at any time, is not well at the moment."""
    try:
        yield
    except Refused as refusal:
        raise ClusterError(
            "api-server-refuses",
            f"The API server does not let this node do what a node may: {refusal.message} (status {refusal.status}).",
            "It is tried again. If it stays so, look at `aks-flex-node status`: is the node's certificate valid?",
            again=True,
        ) from refusal
