"""Finds and removes installed versions of programs that nothing uses any more."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from aks_flex_node.agent.components.catalog import ALL
from aks_flex_node.agent.reconcile.observer import MANIFEST
from aks_flex_node.agent.reconcile.resources import Symlink
from aks_flex_node.host.actions import RemoveTree

if TYPE_CHECKING:
    from aks_flex_node.agent.reconcile.engine import Engine
    from aks_flex_node.host.host import Host


def remove_unused(engine: Engine) -> dict[str, int]:
    """Take away every version that nothing leads to; where each was, and how many bytes it had."""
    gone: dict[str, int] = {}
    for place in unused_versions(engine):
        gone[place] = _size(engine.host, place)
        engine.host.do(RemoveTree(place))
        for owned in engine.ledger.components.values():
            owned.paths.pop(place, None)
        engine.ledger.save()
    return gone


def unused_versions(engine: Engine) -> list[str]:
    """The programs that are ours, and neither wanted nor led to by a link."""
    specs = [component.desired(engine.config, engine.machine) for component in ALL]
    records = {path: one for owned in engine.ledger.components.values() for path, one in owned.paths.items()}
    wanted = {program.path for spec in specs for program in spec.programs}
    links = {one.path for spec in specs for one in spec.resources if isinstance(one, Symlink)}
    links |= {path for path, record in records.items() if record.get("kind") == "link"}
    targets = [entry.target for path in links if (entry := engine.host.look(path))]
    places = [path for path, record in records.items() if record.get("kind") == "program" and path not in wanted]
    return [place for place in places if not any(f"{target}/".startswith(f"{place}/") for target in targets)]


def _size(host: Host, place: str) -> int:
    try:
        files = json.loads(host.read(f"{place}/{MANIFEST}") or b"{}")["files"]
        return sum(int(file["size"]) for file in files.values())
    except (ValueError, KeyError, TypeError, AttributeError):
        return 0
