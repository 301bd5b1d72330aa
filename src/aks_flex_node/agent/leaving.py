"""A node becomes a machine again: the whole way on one page, and then the proof that nothing stayed."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from aks_flex_node.agent import pods
from aks_flex_node.agent.components import agent
from aks_flex_node.agent.components.sequence import AFTER, ALL, SEQUENCE
from aks_flex_node.agent.config.derived import log_file
from aks_flex_node.agent.engine import state
from aks_flex_node.agent.engine.ledger import nursery
from aks_flex_node.agent.engine.resources import Directory, Spec
from aks_flex_node.agent.engine.state import Phase
from aks_flex_node.agent.fetching import keeping
from aks_flex_node.agent.recovering import recover
from aks_flex_node.errors import FlexError
from aks_flex_node.host.actions import MakeDirectory, PlaceTree, ReloadUnits, Remove, RemoveTree, Run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from aks_flex_node.agent.cluster.farewell import Farewell
    from aks_flex_node.agent.engine.component import Component
    from aks_flex_node.agent.engine.engine import Engine
    from aks_flex_node.agent.engine.ledger import Record
    from aks_flex_node.agent.watching import Watcher
    from aks_flex_node.host.actions import Action

    TakeBack = tuple[str, str, Callable[[], list[str]]]  # its name, its title, and how; what is left to type

OWN_FILES = (
    agent.APPLIED,
    agent.CLUSTER,
    agent.CURRENT,
    agent.VERSION,
    agent.FETCHED_FROM,
    agent.NEXT,
    agent.UPDATE,
    agent.WORK,
    agent.FAILED,
    agent.FOLLOWING,
    agent.FOLLOWS,
    keeping.TOGETHER,
)


@dataclass
class Leave:
    engine: Engine
    farewell: Farewell | None
    watcher: Watcher
    keep_artifacts: bool = False
    take_back: Sequence[TakeBack] = ()  # what was made in Azure for this machine
    problems: list[str] = field(default_factory=list)
    to_type: list[str] = field(default_factory=list)
    _was_node: bool = False  # something of ours was found
    _folders: frozenset[str] = frozenset()  # that others may have put something into

    def run(self) -> list[str]:
        """Take everything of ours away; what is still there, in sentences, when something is."""
        paths = self.engine.config.paths
        self._recover()
        self._remember()
        self._folders = self._shared_folders()
        if self.farewell and self._was_node:
            self.to_type += self.farewell.say(self.watcher.note)
        self._part("pods", "pods, their containers, mounts and network", self._pods())
        self._remove(reversed(SEQUENCE))
        if self._was_node:
            self._take_back()
        if not self.problems:
            self._remove(reversed(AFTER))  # whoever carries on where this one could not end goes last
        self._forget_units()
        if not self.problems:
            self._part("agent", "the agent's own state", self._own(paths.data_dir, paths.log_dir))
        return [*self.problems, *self.remains()]

    def _remove(self, components: Iterable[Component]) -> None:
        for component in components:
            with self._watched(component.name, component.title) as done:
                done.extend(self.engine.remove(component, self.problems.append))

    def _take_back(self) -> None:
        """Azure may be out of reach; then what is left there is told, and the machine becomes itself all the same."""
        for name, title, act in self.take_back:
            with self._watched(name, title):
                try:
                    self.to_type += act()
                except FlexError as error:
                    self.watcher.note(error.message)
                    self.problems.append(error.message)

    def _part(self, name: str, title: str, actions: Iterable[Action]) -> None:
        with self._watched(name, title) as done:
            for action in actions:
                with self._noted():
                    self.engine.events.say("action", str(action), "debug", component=name)
                    self.engine.host.do(action)
                    done.append(action)

    @contextlib.contextmanager
    def _watched(self, name: str, title: str) -> Iterator[list[Action]]:
        """A part of the way, before the watcher's eyes; what is done is put into the list."""
        start = time.monotonic()
        done: list[Action] = []
        self.watcher.begins(name, title)
        yield done
        self.watcher.ends(name, len(done), time.monotonic() - start)

    @contextlib.contextmanager
    def _noted(self) -> Iterator[None]:
        try:
            yield
        except FlexError as error:
            self.problems.append(error.message)

    def _recover(self) -> None:
        """Where the ledger is lost, take for ours what bears our mark."""
        if recover(self.engine):
            self.watcher.note("the ledger is lost: going by the marks on files; kernel settings stay until a reboot")
        self._was_node = self.engine.ledger.exists

    def _pods(self) -> list[Action]:
        """Where we never were, all pods are somebody else's."""
        return pods.removal(self.engine.host, self.engine.config, self.engine.ledger.found) if self._was_node else []

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

    def _own(self, data_dir: str, log_dir: str) -> Iterator[Action]:
        """The ledger goes last, because it is what makes the next run able to finish this one."""
        yield RemoveTree(f"{data_dir}/originals")
        if not self.keep_artifacts:
            yield RemoveTree(f"{data_dir}/artifacts")
        yield Remove(f"{data_dir}/state.json")
        yield from (Remove(path) for path in OWN_FILES)
        log = log_file(self.engine.config)
        yield from (Remove(path) for path in (log, f"{log}.1"))
        if self._was_node:
            yield Remove(log_dir)
        ledger = self.engine.ledger
        kept = dict(ledger.owned("agent").paths)
        for place in ledger.places:
            yield from self._last_of(place, kept.get(place.rpartition("/")[0], {}))
        yield from (Remove(path) for path, record in reversed(kept.items()) if came_with_us(record))

    def _last_of(self, place: str, record: Record) -> Iterator[Action]:
        """A directory goes in one instant with the ledger in it, so that none stays of which nobody knows."""
        host, (folder, _, name) = self.engine.host, place.rpartition("/")
        yield RemoveTree(nursery(folder))
        if came_with_us(record) and host.names(folder) == (name,):
            yield PlaceTree(folder, nursery(folder))
            yield RemoveTree(nursery(folder))
            return
        entry, mode = host.look(folder), (record.get("original") or {}).get("mode")
        if entry and mode is not None and entry.mode != mode:
            yield MakeDirectory(folder, mode)
        yield Remove(place)

    def _shared_folders(self) -> frozenset[str]:
        specs = [component.desired(self.engine.config, self.engine.machine) for component in ALL]
        found = {one.path for spec in specs for one in spec.resources if isinstance(one, Directory)}
        return frozenset(found | {self.engine.config.paths.install_dir})

    def left_on_purpose(self) -> list[str]:
        """What stays although it came with us: somebody else's things, or what was asked for."""
        host, paths = self.engine.host, self.engine.config.paths
        kept = [f"{paths.data_dir}/artifacts, as asked"] if self.keep_artifacts else []
        kept += [
            f"{path}: {', '.join(host.names(path)[:5])}, which we did not put there"
            for path in sorted(self._folders)
            if host.names(path)
        ]
        return kept

    def remains(self) -> list[str]:
        """What observation still finds of us: nothing, when all went well."""
        engine = self.engine
        found = [str(action) for action in self._pods()]
        for component in ALL:
            facts = component.observe(engine.host, Spec(), engine.ledger.owned(component.name))
            found += [str(action) for action in component.removal(facts)]
        return found


def came_with_us(record: Record) -> bool:
    """Whether a directory of the agent was not there before it."""
    return "original" in record and record["original"] is None
