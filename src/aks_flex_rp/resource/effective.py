"""Effective properties of a node: the template of its pool, overridden key by key by the node's own properties.

Labels, taints and every other map are merged, and the node's own value wins. Settings that make sense only together
are never mixed: the join method, a maintenance window, and the settings of another Azure identity than the node's.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from aks_flex_rp.arm.errors import json_path
from aks_flex_rp.resource.config_generator import config_versions
from aks_flex_rp.text_enum import TextEnum

if TYPE_CHECKING:
    from collections.abc import Mapping

    Document = dict[str, Any]
    Path = tuple[str, ...]

POOL_NAME = "poolName"
TAINTS: Path = ("nodeConfig", "taints")
IDENTITY: Path = ("azureAuth",)
INDIVISIBLE: frozenset[Path] = frozenset({("kubernetesAuth",), ("nodeConfig", "updatePolicy", "maintenanceWindow")})


class Origin(TextEnum):
    """Where an effective value comes from."""

    NODE = "node"
    POOL = "pool"
    DEFAULT = "default"


def merge_properties(template: Document, own: Document) -> Document:
    """Returns the effective properties. Neither document is changed, and lists of other values are replaced."""
    return _merged(template, own, ())


def _merged(template: Document, own: Document, path: Path) -> Document:
    if path == IDENTITY and own.get("method", template.get("method")) != template.get("method"):
        return own  # the settings of the pool are those of another method
    merged = dict(template)
    for name, value in own.items():
        below, inherited = (*path, name), template.get(name)
        if below == TAINTS and isinstance(inherited, list):
            by_key = {_taint_key(each): each for each in inherited}
            merged[name] = list((by_key | {_taint_key(each): each for each in value}).values())
        elif isinstance(value, dict) and isinstance(inherited, dict) and below not in INDIVISIBLE:
            merged[name] = _merged(inherited, value, below)
        else:
            merged[name] = value
    return merged


def _taint_key(taint: Mapping[str, Any]) -> str:
    return f"{taint['key']}:{taint['effect']}"


def explain(own: Document, effective: Document, config: Mapping[str, Any]) -> tuple[Document, dict[str, str]]:
    """Returns the effective properties with the defaults of the service, and the origin of each value by its path.

    A taint is identified by key and effect: `nodeConfig.taints['example.com/a:NoSchedule']`.
    """
    shown = _merged(_defaults(effective, config), effective, ())
    shown.pop(POOL_NAME, None)
    of_node = {path for path, _ in leaves(own)}
    of_pool = of_node if effective is own else {path for path, _ in leaves(effective)}
    origins: dict[str, str] = {}
    for path, _ in leaves(shown):
        origin = Origin.NODE if path in of_node else Origin.POOL if path in of_pool else Origin.DEFAULT
        origins[_shown_path(path)] = origin
    return shown, origins


@lru_cache(maxsize=4096)
def _shown_path(path: Path) -> str:
    """Most nodes have the same properties. Only paths of valid properties are kept, whose names have a limit."""
    return json_path(*path)


def _defaults(effective: Document, config: Mapping[str, Any]) -> Document:
    """Returns the values that the service chose, as the generated configuration has them."""
    defaults: Document = {
        "continuousMonitoring": bool(config.get("continuousMonitoring")),
        "azureAuth": {"method": "none"},
        "versions": config_versions(config),
        "nodeConfig": {"maxPods": config["node"]["maxPods"]} if "maxPods" in config.get("node", {}) else {},
    }
    return (
        defaults if effective.get("kubernetesAuth") else {**defaults, "kubernetesAuth": {"method": "bootstrapToken"}}
    )


def leaves(document: Mapping[str, Any], above: Path = ()) -> list[tuple[Path, object]]:
    """Returns every value that is not a map, with its path. Each taint is a value."""
    found: list[tuple[Path, object]] = []
    for name, value in document.items():
        path = (*above, name)
        if isinstance(value, dict):
            found += leaves(value, path)
        elif path == TAINTS and isinstance(value, list):
            found += [((*path, _taint_key(each)), each) for each in value]
        else:
            found.append((path, value))
    return found


def changed_values(before: Document, after: Document) -> dict[str, list[object]]:
    """Returns the differences of two templates: by path, the value before and after, None if there is none."""
    old, new = dict(leaves(before)), dict(leaves(after))
    paths = sorted(path for path in {*old, *new} if old.get(path) != new.get(path))
    return {json_path(*path): [old.get(path), new.get(path)] for path in paths}
