"""The one shape in which everything is told: rows with attributes, all of them texts."""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

Row = dict[str, str]
Rows = dict[str, Row]


def counted(names: Iterable[str]) -> Rows:
    """The same thing several times is one row, and one more or less of it is a difference."""
    return {name: {"count": str(count)} for name, count in collections.Counter(names).items()}


def another(name: str, rows: Rows) -> str:
    """A name for one more row. A second mount on the same place, or route to it, is another one."""
    unused, number = name, 1
    while unused in rows:
        number += 1
        unused = f"{name} ({number})"
    return unused
