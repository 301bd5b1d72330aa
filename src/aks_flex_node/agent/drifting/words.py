"""What is wrong, told by what would be done about it and by what was seen."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aks_flex_node.host.actions import (
    DisableUnit,
    EnableUnit,
    LoadModule,
    MakeDirectory,
    MakeLink,
    PlaceTree,
    ReloadUnits,
    Remove,
    RemoveTree,
    RestartUnit,
    SetSysctl,
    StartUnit,
    StopUnit,
    SwapOff,
    WriteFile,
)
from aks_flex_node.host.host import Kind

if TYPE_CHECKING:
    from aks_flex_node.agent.engine.observing import Facts
    from aks_flex_node.host.actions import Action
    from aks_flex_node.host.host import Entry

NOWHERE = "/dev/null"


def told(action: Action, facts: Facts) -> str:
    """What is wrong with the subject of an action."""
    said = (about(action, facts) for about in (_about_path, _about_kernel, _about_unit))
    return next((words for words in said if words), f"is not as it should be: {action}")


def _about_path(action: Action, facts: Facts) -> str:
    match action:
        case WriteFile(path, content, mode):
            return _about_file(facts.entries.get(path), mode, same=facts.contents.get(path) == content)
        case MakeDirectory(path, mode):
            return _about_entry(facts.entries.get(path), mode) or "is no directory"
        case MakeLink(path, target):
            return f"does not lead to {target}" if facts.entries.get(path) else "is missing"
        case PlaceTree(_, path):
            return f"is damaged: {facts.damage.get(path, '')}"
        case Remove() | RemoveTree():
            return "is left over"
    return ""


def _about_kernel(action: Action, facts: Facts) -> str:
    match action:
        case SetSysctl(key, value):
            return f"is {facts.sysctls.get(key)} and not {value}"
        case LoadModule():
            return "is not loaded"
        case SwapOff():
            return "is swapped to"
    return ""


def _about_unit(action: Action, facts: Facts) -> str:
    match action:
        case StartUnit(name):
            return f"is {facts.units[name].active}"
        case EnableUnit():
            return "is disabled"
        case RestartUnit(name):
            return "runs a program that was replaced" if name in facts.replaced else "runs with older settings"
        case StopUnit() | DisableUnit():
            return "is left over"
        case ReloadUnits():
            return "has not read our unit files as they are"
    return ""


def _about_file(entry: Entry | None, mode: int, *, same: bool) -> str:
    if entry and entry.kind is Kind.LINK:
        return "is masked" if entry.target == NOWHERE else f"is a link to {entry.target}"
    if entry and entry.kind is not Kind.FILE:
        return "is no file"
    wrong = _about_entry(entry, mode)
    return ", ".join(one for one in (wrong, "" if same or entry is None else "has other content") if one)


def _about_entry(entry: Entry | None, mode: int) -> str:
    if entry is None:
        return "is missing"
    wrong = [] if entry.mode == mode else [f"has mode {entry.mode:04o} and not {mode:04o}"]
    return ", ".join([*wrong, *([] if entry.roots else ["does not belong to root"])])
