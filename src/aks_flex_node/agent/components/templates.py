"""Fills the templates that lie beside the components. `$name` stands for a value; nothing else is special."""

from __future__ import annotations

from functools import cache
from importlib import resources
from string import Template

from aks_flex_node.agent.marks import MARK


def filled(package: str, name: str, **values: str) -> bytes:
    return Template(_text(package, name)).substitute(values, mark=MARK).encode()


@cache
def _text(package: str, name: str) -> str:
    """Read once: a version of the agent may be at work while it is taken away."""
    return resources.files(package).joinpath(name).read_text()
