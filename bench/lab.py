"""Starts a lab for a benchmark."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from aks_flex_lab.cli.console import TerminalProgress
from aks_flex_lab.lab import Lab
from aks_flex_lab.layout import lab_layout
from aks_flex_lab.tools.catalog import suite_tools

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def running_lab(name: str) -> Iterator[Lab]:
    """Yields the lab of this name; removes it afterwards unless it was running before."""
    lab = Lab(lab_layout(name))
    was_up = lab.exists
    try:
        lab.provide(suite_tools(), TerminalProgress())  # some benchmarks join nodes with earlier versions
        lab.up(TerminalProgress())
        yield lab
    finally:
        if not was_up:
            lab.down()
