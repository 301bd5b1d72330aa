"""Brings a machine from what is true to what should be, one component after another."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from aks_flex_node.agent.engine.observing import damage, sightings
from aks_flex_node.agent.engine.resources import File, Link, Spec
from aks_flex_node.agent.engine.workshop import Clock
from aks_flex_node.agent.words import counted
from aks_flex_node.errors import FlexError, MachineError
from aks_flex_node.host.actions import MakeDirectory, PlaceTree
from aks_flex_node.host.host import Entry, Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from aks_flex_node.agent.config.models import NodeConfig
    from aks_flex_node.agent.engine.component import Component
    from aks_flex_node.agent.engine.events import Events
    from aks_flex_node.agent.engine.ledger import Ledger
    from aks_flex_node.agent.engine.observing import Facts
    from aks_flex_node.agent.engine.resources import Program
    from aks_flex_node.agent.engine.workshop import Workshop
    from aks_flex_node.agent.machine import Machine
    from aks_flex_node.host.actions import Action
    from aks_flex_node.host.host import Host


@dataclass(frozen=True)
class Plan:
    """What one component would do."""

    component: str
    spec: Spec = field(repr=False)
    facts: Facts = field(repr=False)
    actions: tuple[Action, ...]


def subject(action: Action) -> str:
    """What an action is about: a path, a unit, a kernel setting; by this it is known again."""
    return next(
        (str(getattr(action, name)) for name in ("path", "name", "key", "device") if hasattr(action, name)), ""
    )


def looked_away(spec: Spec, facts: Facts, paths: frozenset[str]) -> Facts:
    """Facts by which these paths are as they should be, so that no service is restarted for what is left alone."""
    entries, contents = dict(facts.entries), dict(facts.contents)
    for one in spec.resources:
        match one:
            case File(path, content, mode) if path in paths:
                entries[path], contents[path] = Entry(Kind.FILE, mode), content
            case Link(path, target) if path in paths:
                entries[path] = Entry(Kind.LINK, target=target)
    return replace(facts, entries=entries, contents=contents)


def distinct(plans: Iterable[Plan]) -> Iterator[tuple[Plan, Action]]:
    """All that plans would do; a directory that several of them need is made by the first."""
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
    events: Events
    workshop: Workshop | None = None
    sync: Callable[[], None] = os.sync
    changed: list[Action] = field(default_factory=list)
    complete: bool = True  # the configuration is the real one, with its secrets
    leave_alone: frozenset[str] = frozenset()  # paths that somebody else will not let us have

    @property
    def originals(self) -> str:
        return f"{self.config.paths.data_dir}/originals"

    def plan(self, component: Component) -> Plan:
        spec = component.desired(self.config, self.machine)
        facts = component.observe(self.host, spec, self.ledger.owned(component.name))
        seen = looked_away(spec, facts, self.leave_alone) if self.leave_alone else facts
        wanted = [action for action in component.plan(spec, seen) if not self._is_left_alone(action)]
        return Plan(component.name, spec, facts, tuple(wanted))

    def _is_left_alone(self, action: Action) -> bool:
        return bool(self.leave_alone) and subject(action) in self.leave_alone

    def prepare(self, components: Sequence[Component]) -> None:
        """Begin to fetch everything that these will need and the machine does not have."""
        if self.workshop is None:
            return
        missing: list[Program] = []
        for component in components:
            spec, owned = component.desired(self.config, self.machine), self.ledger.owned(component.name)
            self.ledger.before(component.name, spec, (), self.originals)
            missing += [program for program in spec.programs if damage(self.host, program, owned)]
        for program in missing:
            self._make_room(program)
        self.workshop.prepare(missing)

    def stage(self, components: Sequence[Component]) -> None:
        """Have everything ready beside its place before anything is touched: what is missing is fetched first."""
        self.prepare(components)
        for component in components:
            plan, clock = self.plan(component), Clock(component.seconds)
            for program in (one for one in plan.spec.programs if plan.facts.damage[one.place]):
                if self.workshop:
                    self.workshop.finish(program, clock.left)

    def _make_room(self, program: Program) -> None:
        """A program is made ready beside its place, so there must be one."""
        folder = program.place.rpartition("/")[0]
        if self.host.look(folder) is None:
            self.host.do(MakeDirectory(folder))

    def apply(self, component: Component) -> tuple[Action, ...]:
        """Make true what the component wants. Nothing is done, and nothing restarted, when it is."""
        start = time.monotonic()
        plan, clock = self.plan(component), Clock(component.seconds)
        self.ledger.before(component.name, plan.spec, plan.actions, self.originals)
        done: list[Action] = []
        for action in plan.actions:
            if clock.left <= 0:
                raise MachineError(
                    "step-too-slow",
                    f"{component.title} did not get done within {component.seconds:.0f} s.",
                    "Run the same command again: it goes on where it stopped.",
                    again=True,
                )
            self._do(action, plan, clock)
            done.append(action)
        self.ledger.after(component.name, plan.spec, plan.actions)
        self.changed += done
        self.events.say(
            "component-applied",
            f"{component.title}: {counted(len(done), 'change')}" if done else f"{component.title}: nothing to do",
            "info" if done else "debug",
            component=component.name,
            changes=len(done),
            seconds=round(time.monotonic() - start, 3),
        )
        return tuple(done)

    def _do(self, action: Action, plan: Plan, clock: Clock) -> None:
        if isinstance(action, PlaceTree) and self.workshop:
            program = next(one for one in plan.spec.programs if one.place == action.path)
            self.workshop.finish(program, clock.left)
        self.events.say("action", str(action), "debug", component=plan.component)
        self.host.do(action)

    def settle(self) -> None:
        """Let all that was written reach the disk, and remember that it did."""
        if self.host.live and any(isinstance(action, PlaceTree) for action in self.changed):
            self.sync()
        self.ledger.synced(lambda place: sightings(self.host, place))

    def remove(self, component: Component, report: Callable[[str], None]) -> tuple[Action, ...]:
        """Take away what the component owns. What cannot be taken away now is reported, and the rest goes on."""
        facts = component.observe(self.host, Spec(), self.ledger.owned(component.name))
        return self.clear(component.name, component.removal(facts), report)

    def clear(self, name: str, actions: Iterable[Action], report: Callable[[str], None]) -> tuple[Action, ...]:
        done: list[Action] = []
        failed = False
        for action in actions:
            self.events.say("action", str(action), "debug", component=name)
            try:
                self.host.do(action)
            except FlexError as error:
                failed = True
                report(error.message)
                continue
            done.append(action)
        if not failed:
            self.ledger.forget(name)
        self.changed += done
        return tuple(done)
