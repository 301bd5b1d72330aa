"""Differences between two documents, and reconstruction of an earlier document from the audit. Pure.

The service stores the desired properties, and of the applied ones only the version. Reverting the audited changes one
by one reconstructs the applied properties.
"""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aks_flex_rp.resource.effective import changed_values
from aks_flex_rp.resource.view import format_taint
from aks_flex_rp.store.model import AuditAction, AuditOutcome

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from aks_flex_rp.store.model import AuditEvent

Document = dict[str, Any]
Path = tuple[str, ...]
ValueChange = tuple[object, object]  # before and after; None when absent

WRITES = frozenset({AuditAction.CREATE, AuditAction.UPDATE, AuditAction.REGENERATE_TOKEN})


@dataclass(frozen=True)
class DiffLine:
    """One setting that differs between two documents."""

    name: str
    before: str  # empty when absent
    after: str

    @property
    def kind(self) -> str:
        return "changed" if self.before and self.after else "added" if self.after else "removed"


@dataclass(frozen=True)
class AppliedProperties:
    """Properties of the configuration that a machine has applied."""

    properties: Document
    renewed: bool = False  # the cluster has changed since: its address, its CA or its version


def diff(before: Document, after: Document, above: Path = ()) -> dict[Path, ValueChange]:
    """Returns the differences leaf by leaf, so that changes of two labels are two differences."""
    found: dict[Path, ValueChange] = {}
    for key in sorted({*before, *after}):
        old, new = before.get(key), after.get(key)
        path = (*above, key)
        trees = [each for each in (old, new) if isinstance(each, dict) and each]
        if trees and all(each is None or isinstance(each, dict) for each in (old, new)):
            found |= diff(old or {}, new or {}, path)
        elif old != new:
            found[path] = (old, new)
    return found


def apply_values(document: Document, values: Mapping[Path, object]) -> Document:
    """Returns a copy with these values set. None removes a value and the parents that become empty."""
    result = copy.deepcopy(document)
    for path, value in values.items():
        if value is None:
            _remove(result, path)
        else:
            _set(result, path, copy.deepcopy(value))
    return result


def value_at(document: Document, path: Path) -> Any:
    """Returns the value at a path, or None when it does not exist."""
    here: Any = document
    for step in path:
        here = here.get(step) if isinstance(here, dict) else None
    return here


def _set(document: Document, path: Path, value: object) -> None:
    for step in path[:-1]:
        if not isinstance(document.get(step), dict):
            document[step] = {}
        document = document[step]
    document[path[-1]] = value


def _remove(document: Document, path: Path) -> None:
    holder = value_at(document, path[:-1])
    if not isinstance(holder, dict) or path[-1] not in holder:
        return
    del holder[path[-1]]
    if not holder and len(path) > 1:
        _remove(document, path[:-1])


def diff_lines(found: Mapping[str, ValueChange]) -> list[DiffLine]:
    """Returns one line per leaf, in the order of the names."""
    return [line for name, (old, new) in found.items() for line in _lines(name, _leaves(old), _leaves(new))]


def setting_lines(before: Document, after: Document) -> list[DiffLine]:
    """Returns the changes of settings, one line per value, and a taint as kubectl writes it."""
    return changed_lines(changed_values(before, after))


def changed_lines(changes: Mapping[str, Sequence[object]]) -> list[DiffLine]:
    return diff_lines({path: (_plain(path, old), _plain(path, new)) for path, (old, new) in changes.items()})


def _plain(path: str, value: object) -> object:
    return format_taint(value) if isinstance(value, dict) and path.startswith("nodeConfig.taints[") else value


def _lines(name: str, before: Mapping[Path, str], after: Mapping[Path, str]) -> Iterator[DiffLine]:
    for path in {**before, **after}:
        whole = ".".join(filter(None, (name, name_of(path))))
        yield DiffLine(whole, before.get(path, ""), after.get(path, ""))


def name_of(path: Path) -> str:
    """Returns a path as dotted text. Keys with a dot or slash are quoted."""
    return ".".join(f'"{step}"' if "." in step or "/" in step else step for step in path)


def text_of(value: object) -> str:
    """Returns a string as it is, other values and the empty string as JSON."""
    return value if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False)


def applied_properties(
    desired: Document, version: int, has: str, events: Iterable[AuditEvent]
) -> AppliedProperties | None:
    """Reconstructs the properties of the applied version `has` from `events`, newest first.

    Returns None when the events do not reach back to that version.
    """
    if str(version) == has:
        return AppliedProperties(desired)
    found, renewed = desired, False
    for event in events:
        if event.what not in WRITES or event.outcome is not AuditOutcome.OK:
            continue
        if str(event.detail.get("configVersion")) == has:
            return AppliedProperties(found, renewed)
        if event.what is AuditAction.CREATE:
            return None  # applied by an earlier node of the same name
        found = revert_event(found, event)
        renewed = renewed or "changed" not in event.detail
    return None


def revert_event(document: Document, event: AuditEvent) -> Document:
    """Returns the document as it was before the event."""
    changes: Mapping[str, ValueChange] = event.detail.get("changed", {})
    return apply_values(document, {change_path(document, name): old for name, (old, _) in changes.items()})


def change_path(document: Document, name: str) -> Path:
    """Returns the path of a change from its dotted name in the audit log.

    Keys can contain dots, so the document decides where a key ends: the parents of a changed value are objects before
    and after the change.
    """
    path: list[str] = []
    here: object = document
    while isinstance(here, dict):
        fitting = [key for key, value in here.items() if isinstance(value, dict) and name.startswith(f"{key}.")]
        if not fitting:
            break
        key = max(fitting, key=len)
        path.append(key)
        here, name = here[key], name.removeprefix(f"{key}.")
    return (*path, name)


def _leaves(value: object, path: Path = ()) -> dict[Path, str]:
    if value is None:
        return {}
    if isinstance(value, dict) and value:
        return {inner: text for key, each in value.items() for inner, text in _leaves(each, (*path, key)).items()}
    return {path: text_of(value)}
