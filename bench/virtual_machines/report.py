"""The figures of the tests in virtual machines as Markdown tables.

The tests record phases by machine (`bookworm amd64`), and other subjects (`power loss`) with their own names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

Figures = dict[str, dict[str, Any]]
ACCELERATOR = "accelerator"  # recorded for every machine, and for nothing else


def render(figures: Figures) -> str:
    machines = {run: found for run, found in figures.items() if ACCELERATOR in found}
    others = {run: found for run, found in figures.items() if run not in machines}
    tables = [_machines_table(machines)] if machines else []
    return "\n\n".join([*tables, *(_subject_table(run, found) for run, found in others.items())]) + "\n"


def _machines_table(machines: Figures) -> str:
    phases = list(dict.fromkeys(phase for found in machines.values() for phase in found))
    rows = ([phase, *(found.get(phase, "not run") for found in machines.values())] for phase in phases)
    return _table(("phase, in seconds", *machines), rows)


def _subject_table(run: str, found: Mapping[str, Any]) -> str:
    return _table((run, ""), found.items())


def _table(head: Iterable[object], rows: Iterable[Iterable[object]]) -> str:
    head = tuple(head)
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(str, cells))} |" for cells in lines)
