"""Brings up a lab to measure in."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from aks_flex_lab.cli.console import TerminalProgress
from aks_flex_lab.lab import Lab
from aks_flex_lab.layout import lab_layout

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def running_lab(name: str) -> Iterator[Lab]:
    """The lab of this name; it is taken away afterwards unless it was up before."""
    lab = Lab(lab_layout(name))
    was_up = lab.exists
    try:
        lab.up(TerminalProgress())
        yield lab
    finally:
        if not was_up:
            lab.down()
