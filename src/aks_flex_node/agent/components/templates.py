"""Fills the templates that lie beside the components. `$name` stands for a value; nothing else is special."""

from __future__ import annotations

from importlib import resources
from string import Template

from aks_flex_node.agent.marks import MARK


def filled(package: str, name: str, **values: str) -> bytes:
    text = resources.files(package).joinpath(name).read_text()
    return Template(text).substitute(values, mark=MARK).encode()
