"""A node becomes a machine again: the whole way on one page, and then the proof that nothing stayed."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from aks_flex_node.agent import pods
from aks_flex_node.agent.components import agent
from aks_flex_node.agent.components.sequence import SEQUENCE
from aks_flex_node.agent.engine import state
from aks_flex_node.agent.engine.recovery import reconstruct
from aks_flex_node.agent.engine.resources import Spec
from aks_flex_node.agent.engine.state import Phase
from aks_flex_node.errors import FlexError
from aks_flex_node.host.actions import ReloadUnits, Remove, RemoveTree, Run

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aks_flex_node.agent.cluster.farewell import Farewell
    from aks_flex_node.agent.engine.engine import Engine
    from aks_flex_node.agent.watching import Watcher
    from aks_flex_node.host.actions import Action

LEFTOVER_FILES = ("state.json", "applied-config.json", "current-config.json", "config-version.txt")


@dataclass
class Leave:
    engine: Engine
    farewell: Farewell | None
    watcher: Watcher
    keep_artifacts: bool = False
    problems: list[str] = field(default_factory=list)
    to_type: list[str] = field(default_factory=list)

    def run(self) -> list[str]:
        """Take everything of ours away; what is still there, in sentences, when something is."""
        engine, paths = self.engine, self.engine.config.paths
        self._recover()
        self._remember()
        if self.farewell:
            self.to_type += self.farewell.say(self.watcher.note)
        self._part("pods", "pods, their containers, mounts and network", pods.removal(engine.host, engine.config))
        for component in reversed(SEQUENCE):
            self.watcher.begins(component.name, component.title)
            done = engine.remove(component, self.problems.append)
            self.watcher.ends(component.name, len(done), 0)
        self._forget_units()
        if not self.problems:
            self._part("agent", "the agent's own state", self._own(paths.data_dir, paths.install_dir, paths.log_dir))
        return [*self.problems, *self.remains()]

    def _part(self, name: str, title: str, actions: list[Action]) -> None:
        self.watcher.begins(name, title)
        done = 0
        for action in actions:
            with self._noted():
                self.engine.events.say("action", str(action), "debug", component=name)
                self.engine.host.do(action)
                done += 1
        self.watcher.ends(name, done, 0)

    @contextlib.contextmanager
    def _noted(self) -> Iterator[None]:
        try:
            yield
        except FlexError as error:
            self.problems.append(error.message)

    def _recover(self) -> None:
        """Where the ledger is lost, take for ours what bears our mark."""
        engine = self.engine
        if engine.ledger.exists:
            return
        for component in (agent.COMPONENT, *SEQUENCE):
            spec = component.desired(engine.config, engine.machine)
            engine.ledger.components[component.name] = reconstruct(engine.host, spec, engine.config.paths.install_dir)
        if any(not owned.empty for owned in engine.ledger.components.values()):
            self.watcher.note("the ledger is lost: going by the marks on files")
            engine.ledger.save()

    def _remember(self) -> None:
        path = f"{self.engine.config.paths.data_dir}/state.json"
        if self.engine.host.look(self.engine.config.paths.data_dir) is not None:
            state.write(self.engine.host, path, state.read(self.engine.host, path).at(Phase.RESETTING))

    def _forget_units(self) -> None:
        host = self.engine.host
        if host.live:
            failed = [name for name in pods.SERVICES if host.unit(name).active == "failed"]
            forget = [Run(("systemctl", "reset-failed", name), f"forget that {name} failed") for name in failed]
            self._part("units", "systemd forgets our units", [*forget, ReloadUnits()])

    def _own(self, data_dir: str, install_dir: str, log_dir: str) -> list[Action]:
        """The ledger goes last, because it is what makes the next run able to finish this one."""
        actions: list[Action] = [RemoveTree(f"{data_dir}/originals")]
        if not self.keep_artifacts:
            actions.append(RemoveTree(f"{data_dir}/artifacts"))
        actions += [Remove(f"{log_dir}/agent.log"), Remove(f"{log_dir}/agent.log.1"), Remove(log_dir)]
        actions += [Remove(f"{data_dir}/{name}") for name in LEFTOVER_FILES]
        kept = self.engine.ledger.owned("agent").paths
        actions += [Remove(place) for place in self.engine.ledger.places]
        for folder in (data_dir, install_dir):
            if (kept.get(folder, {}).get("original")) is None:
                actions.append(Remove(folder))
        return actions

    def left_on_purpose(self) -> list[str]:
        """What stays although it came with us: somebody else's things, or what was asked for."""
        host, paths = self.engine.host, self.engine.config.paths
        kept = [f"{paths.data_dir}/artifacts, as asked"] if self.keep_artifacts else []
        others = (paths.cni.conf_dir, paths.cni.bin_dir, paths.kubernetes.manifests_dir, paths.kubernetes.certs_dir)
        kept += [
            f"{path}: {', '.join(host.names(path)[:5])}, which we did not put there"
            for path in others
            if host.names(path)
        ]
        return kept

    def remains(self) -> list[str]:
        """What observation still finds of us: nothing, when all went well."""
        engine = self.engine
        found = [str(action) for action in pods.removal(engine.host, engine.config)]
        for component in SEQUENCE:
            facts = component.observe(engine.host, Spec(), engine.ledger.owned(component.name))
            found += [str(action) for action in component.removal(facts)]
        return found
