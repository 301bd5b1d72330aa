"""Compares a machine with an earlier snapshot: files, units, mounts, sysctls, firewall, links, processes.

    take      take a snapshot, with a function that runs a script in the machine
    save/load store a snapshot, readable by its owner only
    diff      the differences between two snapshots
    render    differences as text

`collector/exclusions.py` lists the exclusions with their reasons.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aks_flex_lab.snapshots import model
from aks_flex_lab.snapshots.comparison import AttributeChange, SnapshotDifference, diff, render
from aks_flex_lab.snapshots.model import Snapshot, load, parse, save

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    # Runs a script with arguments by `python3 -` in the machine, as root, and returns its output.
    RunInside: TypeAlias = Callable[[str, list[str]], str]

__all__ = ["AttributeChange", "Snapshot", "SnapshotDifference", "diff", "load", "render", "save", "take"]


def take(run_inside: RunInside) -> Snapshot:
    """Takes a snapshot after the machine has booted. Changes nothing in the machine."""
    return parse(run_inside(model.collector_script(), []))
