"""A lab to measure in."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from aks_flex_node.lab.cli.progress import ScreenProgress
from aks_flex_node.lab.lab import Lab
from aks_flex_node.lab.layout import layout

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def standing(name: str) -> Iterator[Lab]:
    """The lab of this name; it is taken away afterwards unless it was up before."""
    lab = Lab(layout(name))
    was_up = lab.exists
    try:
        lab.up(ScreenProgress())
        yield lab
    finally:
        if not was_up:
            lab.down()
