"""Ubuntu machines of both supported releases, from their files beside this module."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from aks_flex_node.agent.machine import read_machine
from aks_flex_node.host.actions import MakeLink
from aks_flex_node.host.host import CommandResult, UnitState
from tests.hosts.recorded import RecordedHost
from tests.unit.agent.preflight.builders import config, fit

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aks_flex_node.agent.preflight import PreflightContext

RELEASES = ("22.04", "24.04")
ANSWERS: dict[tuple[str, ...], CommandResult] = {("modprobe", "-n", "-q", "--", "br_netfilter"): CommandResult(0)}


@cache
def recorded(release: str) -> dict[str, Any]:
    return dict(yaml.safe_load((Path(__file__).parent / f"{release}.yaml").read_text()))


def ubuntu(
    release: str,
    files: Mapping[str, str | None] | None = None,
    links: Mapping[str, str] | None = None,
    units: Mapping[str, str] | None = None,
) -> RecordedHost:
    """Returns a machine of a release, with other files (None: without it), links and states of units."""
    record, changed = recorded(release), dict(files or {})
    programs = {f"{folder}/{name}": "" for folder, names in record["programs"].items() for name in names}
    present = {path: text for path, text in {**record["files"], **programs, **changed}.items() if text is not None}
    states = {**record["units"], **(units or {})}
    host = RecordedHost(present, ANSWERS, {name: _unit(name, active) for name, active in states.items()})
    for path, target in {**record["links"], **(links or {})}.items():
        if path not in changed:
            host.apply(MakeLink(path, target))
    return host


def _unit(name: str, active: str) -> UnitState:
    return UnitState(name, exists=True, enabled=True, active=active, pid=700 if active == "active" else 0)


def preflight(host: RecordedHost) -> PreflightContext:
    return fit(host=host, machine=read_machine(host, config()))
