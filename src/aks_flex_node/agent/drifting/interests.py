"""The paths to watch: everything that the components want to stand on the machine as it is."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from aks_flex_node.agent.components.sequence import ALL
from aks_flex_node.agent.drifting.drifts import UNIT_PLACES
from aks_flex_node.agent.engine.observing import MANIFEST
from aks_flex_node.agent.engine.resources import Directory, File, Line, Link, Program, Service, above

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from aks_flex_node.agent.engine.component import Component
    from aks_flex_node.agent.engine.engine import Engine
    from aks_flex_node.agent.engine.resources import Resource
    from aks_flex_node.host.host import Host

WANTS = "/etc/systemd/system/multi-user.target.wants"


def interests(engine: Engine, components: Sequence[Component] = ALL) -> frozenset[str]:
    """Kernel settings are not among them: nobody is told when these change, so they are compared by the clock."""
    specs = [component.desired(engine.config, engine.machine) for component in components]
    return frozenset(path for spec in specs for one in spec.resources for path in _paths(one, engine.host))


def _paths(resource: Resource, host: Host) -> Iterator[str]:
    match resource:
        case Directory(path) | File(path) | Line(path) | Link(path):
            yield path
        case Program():
            yield from _tree(resource, host)
        case Service(name):
            yield f"{WANTS}/{name}"
            yield from (f"{place}/{name}.d/" for place in UNIT_PLACES)


def _tree(program: Program, host: Host) -> Iterator[str]:
    """The files of an installed program, and the directories that they lie in."""
    try:
        names = list(json.loads(host.read(f"{program.place}/{MANIFEST}") or b"{}")["files"])
    except (ValueError, KeyError, TypeError):
        names = []
    files = [f"{program.place}/{name}" for name in (MANIFEST, *names)]
    inside = {folder for path in files for folder in above(path) if f"{folder}/".startswith(f"{program.place}/")}
    yield from (*files, *sorted(inside))
