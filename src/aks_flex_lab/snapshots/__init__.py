"""Compares a machine with an earlier snapshot: files, units, mounts, sysctls, firewall, links, processes.

    take      take a snapshot, through a function that runs a script in the machine
    save/load store a snapshot, readable by its owner only
    diff      the differences between two
    render    the same as text

What is excluded, and why, is in `collector/exclusions.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aks_flex_lab.snapshots import model
from aks_flex_lab.snapshots.comparison import AttributeChange, SnapshotDifference, diff, render
from aks_flex_lab.snapshots.model import Snapshot, load, parse, save

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    # Runs a script with arguments by `python3 -` inside the machine, as root, and returns what it printed.
    RunInside: TypeAlias = Callable[[str, list[str]], str]

__all__ = ["AttributeChange", "Snapshot", "SnapshotDifference", "diff", "load", "render", "save", "take"]


def take(run_inside: RunInside) -> Snapshot:
    """Look at the machine. It is waited for while it boots, and nothing in it is changed."""
    return parse(run_inside(model.collector_script(), []))
