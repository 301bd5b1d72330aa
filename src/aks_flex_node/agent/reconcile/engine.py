"""Reconciles the machine from its observed to its desired state, component by component."""

from __future__ import annotations

import os
import time
from dataclasses import field, replace
from typing import TYPE_CHECKING

from aks_flex_node.agent.reconcile.observer import Facts, file_change_times, find_damage
from aks_flex_node.agent.reconcile.resources import File, ProgramTree, Spec, Symlink
from aks_flex_node.agent.text import pluralize
from aks_flex_node.errors import FlexError, MachineError
from aks_flex_node.host.actions import Action, MakeDirectory, PlaceTree, SetAside, StartUnit
from aks_flex_node.host.host import EntryKind, FileEntry, Host
from aks_flex_node.lean_dataclass import dataclass, frozen
from aks_flex_node.retry import RetryDeadline

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from aks_flex_node.agent.event_log import EventLog
    from aks_flex_node.agent.machine import Machine
    from aks_flex_node.agent.reconcile.component import Component
    from aks_flex_node.agent.reconcile.ledger import Ledger, OwnedResources
    from aks_flex_node.agent.reconcile.program_stager import ProgramStager
    from aks_flex_node.settings.models import NodeConfig


@frozen
class ComponentPlan:
    """The actions of one component, with its spec and the observed facts."""

    component: str
    spec: Spec = field(repr=False)
    facts: Facts = field(repr=False)
    actions: tuple[Action, ...]


def assume_unchanged(spec: Spec, facts: Facts, paths: frozenset[str]) -> Facts:
    """Returns facts in which these paths match the spec, so that ignored paths do not cause restarts."""
    entries, contents = dict(facts.entries), dict(facts.contents)
    for one in spec.resources:
        match one:
            case File(path, content, mode) if path in paths:
                entries[path], contents[path] = FileEntry(EntryKind.FILE, mode), content
            case Symlink(path, target) if path in paths:
                entries[path] = FileEntry(EntryKind.LINK, target=target)
    return replace(facts, entries=entries, contents=contents)


def distinct_actions(plans: Iterable[ComponentPlan]) -> Iterator[tuple[ComponentPlan, Action]]:
    """Yields the actions of all plans; a directory that several plans create is yielded once."""
    made: set[str] = set()
    for plan in plans:
        for action in plan.actions:
            if not isinstance(action, MakeDirectory):
                yield plan, action
            elif action.path not in made:
                made.add(action.path)
                yield plan, action


@dataclass
class Engine:
    host: Host
    config: NodeConfig
    machine: Machine
    ledger: Ledger
    events: EventLog
    stager: ProgramStager | None = None
    sync: Callable[[], None] = os.sync
    applied_actions: list[Action] = field(default_factory=list)
    config_complete: bool = True  # the complete configuration, with its secrets
    ignored_paths: frozenset[str] = frozenset()  # paths that another program keeps changing
    kept_stopped: frozenset[str] = frozenset()  # units that stay stopped if a person has stopped them

    @property
    def originals(self) -> str:
        return f"{self.config.paths.data_dir}/originals"

    def plan(self, component: Component) -> ComponentPlan:
        spec = component.desired(self.config, self.machine)
        facts = component.observe(self.host, spec, self.ledger.owned(component.name))
        seen = assume_unchanged(spec, facts, self.ignored_paths) if self.ignored_paths else facts
        actions = tuple(action for action in component.plan(spec, seen) if not self._is_ignored(action))
        return ComponentPlan(component.name, spec, facts, actions)

    def _is_ignored(self, action: Action) -> bool:
        if isinstance(action, StartUnit) and action.name in self.kept_stopped:
            return self.host.unit(action.name).is_stopped
        return bool(self.ignored_paths) and action.subject in self.ignored_paths

    def prepare(self, components: Sequence[Component]) -> None:
        """Starts to stage all missing or damaged programs of the components in the background."""
        if self.stager is None:
            return
        specs = {component.name: component.desired(self.config, self.machine) for component in components}
        self.ledger.record_directories(specs, self.originals)
        missing: list[ProgramTree] = []
        for name, spec in specs.items():
            owned = self.ledger.owned(name)
            missing += [program for program in spec.programs if find_damage(self.host, program, owned)]
            for program in spec.programs:
                if program in missing:
                    self._make_parent(program, owned)
        self.stager.prepare(missing)

    def stage(self, components: Sequence[Component]) -> None:
        """Stages all missing programs of the components and waits for them, before any change."""
        self.prepare(components)
        for component in components:
            plan, clock = self.plan(component), RetryDeadline(component.timeout_seconds)
            for program in (one for one in plan.spec.programs if plan.facts.damage[one.path]):
                if self.stager:
                    self.stager.finish(program, clock.left)

    def set_damaged_aside(self, component: Component) -> None:
        """Moves damaged files of a component: who owns them creates them again only if they are missing."""
        for action in self.plan(component).actions:
            if isinstance(action, SetAside):
                self.host.apply(action)

    def _make_parent(self, program: ProgramTree, owned: OwnedResources) -> None:
        """Creates the parent directory of a program, which also contains its staging directory."""
        folder = program.path.rpartition("/")[0]
        entry, target = self.host.stat(folder), self.host.stat(f"{folder}/.")
        if target is not None and target.kind is EntryKind.DIRECTORY:
            return
        if entry and entry.kind is EntryKind.FILE and folder in owned.paths:
            self.host.apply(SetAside(folder))
        self.host.apply(MakeDirectory(folder))

    def apply(self, component: Component) -> tuple[Action, ...]:
        """Applies the component's plan and records it in the ledger; returns the applied actions. Idempotent."""
        start = time.monotonic()
        plan, clock = self.plan(component), RetryDeadline(component.timeout_seconds)
        self.ledger.record_before(component.name, plan.spec, plan.actions, self.originals)
        done: list[Action] = []
        for action in plan.actions:
            if clock.left <= 0:
                raise MachineError(
                    "command-timeout",
                    f"{component.title}: not completed within {component.timeout_seconds:.0f} s.",
                    "Run the same command again. It continues where it stopped.",
                    retryable=True,
                )
            self._do(action, plan, clock)
            done.append(action)
        self.ledger.record_after(component.name, plan.spec, plan.actions)
        self.applied_actions += done
        self.events.emit(
            "component-applied",
            f"{component.title}: {pluralize(len(done), 'change')}" if done else f"{component.title}: nothing to do",
            "info" if done else "debug",
            component=component.name,
            changes=len(done),
            seconds=round(time.monotonic() - start, 3),
        )
        return tuple(done)

    def _do(self, action: Action, plan: ComponentPlan, clock: RetryDeadline) -> None:
        if isinstance(action, PlaceTree) and self.stager:
            program = next(one for one in plan.spec.programs if one.path == action.path)
            self.stager.finish(program, clock.left)
        self.events.emit("action", str(action), "debug", component=plan.component)
        self.host.apply(action)

    def sync_to_disk(self) -> None:
        """Syncs installed programs to disk and records that in the ledger."""
        if self.host.live and any(isinstance(action, PlaceTree) for action in self.applied_actions):
            self.sync()
        self.ledger.record_synced(lambda path: file_change_times(self.host, path))

    def remove(self, component: Component, report: Callable[[str], None]) -> tuple[Action, ...]:
        """Removes what the component owns; reports failed removals and continues."""
        facts = component.observe(self.host, Spec(), self.ledger.owned(component.name))
        done: list[Action] = []
        failed = False
        for action in component.removal(facts):
            self.events.emit("action", str(action), "debug", component=component.name)
            try:
                self.host.apply(action)
            except FlexError as error:
                failed = True
                report(error.message)
                continue
            done.append(action)
        if not failed:
            try:
                self.ledger.forget(component.name)
            except FlexError as error:
                report(error.message)
        self.applied_actions += done
        return tuple(done)
