"""Comparing a machine with its earlier self: every file, unit, mount, setting, rule, link and process.

    take      look at a machine, through a function that runs a script inside it
    save/load keep a snapshot, readable by its owner only
    diff      what differs between two
    render    the same for a person

What is left out, and why, stands in `inside/ignored.py` and nowhere else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aks_flex_node.lab.snapshots import script
from aks_flex_node.lab.snapshots.differences import Attribute, Difference, diff
from aks_flex_node.lab.snapshots.lines import render
from aks_flex_node.lab.snapshots.model import Snapshot, load, parse, save

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    # Runs a script with arguments by `python3 -` inside the machine, as root, and returns what it printed.
    RunInside: TypeAlias = Callable[[str, list[str]], str]

__all__ = ["Attribute", "Difference", "Snapshot", "diff", "load", "render", "save", "take"]


def take(run_inside: RunInside) -> Snapshot:
    """Look at the machine. It is waited for while it boots, and nothing in it is changed."""
    return parse(run_inside(script.text(), []))
