"""What is not as the configuration wants it, in words for people and with how files differ."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from aks_flex_node.agent.components.sequence import ALL
from aks_flex_node.agent.drifting.glances import Glance
from aks_flex_node.agent.drifting.words import told
from aks_flex_node.agent.engine.engine import distinct, subject
from aks_flex_node.agent.engine.resources import Service
from aks_flex_node.host.actions import MakeDirectory, ReloadUnits, RestartUnit, WriteFile

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from aks_flex_node.agent.engine.component import Component
    from aks_flex_node.agent.engine.engine import Engine, Plan
    from aks_flex_node.host.actions import Action
    from aks_flex_node.host.host import Host

MOST_LINES = 40
MOST_WIDTH = 200
UNIT_PLACES = ("/etc/systemd/system", "/etc/systemd/system.control", "/run/systemd/system")


@dataclass(frozen=True)
class Drift:
    component: str
    subject: str  # a path, a unit, a kernel setting
    what: str  # what is wrong with it, as a person would say it, with its subject
    diff: str = ""  # of text files: what should be there against what is
    foreign: bool = False  # it is somebody else's, and not ours to take away


def drifts(engine: Engine, components: Sequence[Component] = ALL) -> tuple[Drift, ...]:
    """Everything that a repair would change, and what others have put beside our units. It only looks."""
    specs = [component.desired(engine.config, engine.machine) for component in components]
    names = [one.name for spec in specs for one in spec.resources if isinstance(one, Service)]
    glance = Glance(engine.host, names)
    looking = replace(engine, host=glance)
    plans = [looking.plan(component) for component in components]
    own = [
        Drift("systemd" if isinstance(action, ReloadUnits) else plan.component, *_said(plan, action, glance))
        for plan, action in distinct(plans)
        if _counts(plan, action, engine.leave_alone)
    ]
    return tuple(dict.fromkeys((*own, *_neighbours(engine, plans, glance))))


def _said(plan: Plan, action: Action, host: Host) -> tuple[str, str, str]:
    about = subject(action) or "systemd"
    return about, f"{about} {told(action, plan.facts)}", _diff(action, host)


def _counts(plan: Plan, action: Action, left_alone: frozenset[str]) -> bool:
    """What only follows from something else that is wrong is no drift of its own."""
    others = [one for one in plan.actions if not isinstance(one, ReloadUnits | RestartUnit)]
    if isinstance(action, ReloadUnits):
        return not others
    if isinstance(action, RestartUnit):
        inputs = {path for one in plan.spec.resources if isinstance(one, Service) for path in one.inputs}
        return not inputs & (left_alone | {subject(one) for one in others})
    return not (isinstance(action, MakeDirectory) and _is_room(plan, action))


def _is_room(plan: Plan, made: MakeDirectory) -> bool:
    """A directory that is made only because something is missing in it."""
    return made.path not in plan.spec.paths


def _diff(action: Action, host: Host) -> str:
    """How a file differs from what it should be; of a secret one, and of one that is no text, nothing is told."""
    if not isinstance(action, WriteFile) or action.secret:
        return ""
    try:
        found, wanted = (host.read(action.path) or b"").decode(), action.content.decode()
    except UnicodeDecodeError:
        return ""
    lines = list(difflib.unified_diff(wanted.splitlines(), found.splitlines(), "wanted", "found", "", "", 1, ""))
    kept = [line[:MOST_WIDTH] for line in lines[:MOST_LINES]]
    return "\n".join([*kept, *(["…"] if len(lines) > MOST_LINES else [])])


def _neighbours(engine: Engine, plans: Sequence[Plan], host: Host) -> Iterator[Drift]:
    """Drop-ins of others that change what our units do."""
    ours = {path for plan in plans for path in plan.spec.paths}
    for plan in plans:
        for unit in (one.name for one in plan.spec.resources if isinstance(one, Service)):
            for folder in (f"{place}/{unit}.d" for place in UNIT_PLACES):
                paths = [f"{folder}/{name}" for name in host.names(folder) if name.endswith(".conf")]
                for path in (one for one in paths if one not in ours and one not in engine.leave_alone):
                    yield Drift(plan.component, path, f"{path} changes {unit} and is not ours", foreign=True)
