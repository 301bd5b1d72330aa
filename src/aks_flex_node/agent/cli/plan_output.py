"""Prints plans: the actions of each component, and diffs of the files they would change."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any

from aks_flex_node.agent.cli import terminal
from aks_flex_node.agent.reconcile.engine import distinct_actions
from aks_flex_node.host.actions import WriteFile

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aks_flex_node.agent.reconcile.engine import ComponentPlan
    from aks_flex_node.host.actions import Action
    from aks_flex_node.host.host import Host


def print_plans(plans: Iterable[ComponentPlan], host: Host) -> int:
    """Print all plans; how many actions there are."""
    count, shown = 0, ""
    for plan, action in distinct_actions(plans):
        if plan.component != shown:
            terminal.print_line(f"{plan.component}:")
        terminal.print_line(f"  {action.description}")
        for line in file_diff(action, host):
            terminal.print_line(f"      {line}")
        count, shown = count + 1, plan.component
    return count


def file_diff(action: Action, host: Host) -> list[str]:
    """How a file would change; of a secret one, only that it would."""
    if not isinstance(action, WriteFile):
        return []
    if action.secret:
        return ["(its content is secret)"]
    before = (host.read(action.path) or b"").decode(errors="replace").splitlines()
    after = action.content.decode(errors="replace").splitlines()
    lines = difflib.unified_diff(before, after, lineterm="", n=1)
    return [line for line in lines if not line.startswith(("---", "+++"))]


def plans_as_data(plans: Iterable[ComponentPlan]) -> list[dict[str, Any]]:
    return [
        {"component": plan.component, "action": type(action).__name__, "what": action.description}
        for plan, action in distinct_actions(plans)
    ]
