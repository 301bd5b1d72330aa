"""The generic options --set, --add and --remove of `update`, applied to the properties of a node."""

from __future__ import annotations

import copy
from typing import Any

from azure.cli.core.azclierror import InvalidArgumentValueError
from azure.cli.core.commands.arm import (
    add_properties,
    add_usage,
    remove_properties,
    remove_usage,
    set_properties,
    set_usage,
)
from knack.util import CLIError

from azext_aks_flex_node.vendored.node_changes import TAINTS, sections, table

Document = dict[str, Any]
USAGE = {"set": set_usage, "add": add_usage, "remove": remove_usage}


def apply_generic_update(properties: Document, arguments: Document | None) -> Document:
    """Returns the properties after the generic options, in the order of the command line."""
    actions = (arguments or {}).get("actions") or ()
    if not actions:
        return properties
    force_string = bool((arguments or {}).get("force_string"))
    resource = {"properties": _filled(properties)}
    for name, values in actions:
        _apply(resource, name, values, force_string)
    _require_writable(resource)
    return dict(_pruned(resource["properties"], properties))


def _apply(resource: Document, action: str, values: list[str], force_string: bool) -> None:
    option = f"--{action.lstrip('-')}"
    try:
        if option == "--set":
            for expression in values:
                set_properties(resource, expression, force_string)
        elif option == "--add":
            add_properties(resource, values, force_string)
        else:
            remove_properties(resource, values)
    except (ValueError, KeyError):
        raise InvalidArgumentValueError(f"{option}: invalid syntax. {USAGE[option.lstrip('-')]}") from None
    except CLIError as error:
        raise InvalidArgumentValueError(
            f"{option}: {error}", "Paths are as in the output of `az aks flex-node show`."
        ) from None


def _require_writable(resource: Document) -> None:
    properties, writable = resource.get("properties"), sorted({path.partition(".")[0] for path in table()})
    if not isinstance(properties, dict):
        raise InvalidArgumentValueError("properties is not an object.", "Check --set and --remove.")
    others = [name for name in resource if name != "properties"]
    others += [f"properties.{name}" for name in properties if name not in writable]
    if others:
        paths = ", ".join(f"properties.{name}" for name in writable)
        raise InvalidArgumentValueError(f"{others[0]} cannot be changed.", f"Paths start with one of {paths}.")


def _filled(properties: Document) -> Document:
    """Adds the sections that the node does not have: az refuses paths through missing ones."""
    filled = copy.deepcopy(properties)
    for path in (*sections(), TAINTS):
        *parents, name = path.split(".")
        inner: Any = filled
        for parent in parents:
            inner = inner.get(parent) if isinstance(inner, dict) else None
        # The settings of another Azure identity are not allowed beside those of the present one.
        if isinstance(inner, dict) and parents != ["azureAuth"]:
            inner.setdefault(name, [] if path == TAINTS else {})
    return filled


def _pruned(after: Any, before: Any) -> Any:
    """Removes sections that are empty and that the node did not have."""
    if not isinstance(after, dict):
        return after
    earlier = before if isinstance(before, dict) else {}
    pruned = {name: _pruned(value, earlier.get(name)) for name, value in after.items()}
    return {name: value for name, value in pruned.items() if name in earlier or value not in ({}, [])}
