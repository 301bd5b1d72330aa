"""Tests of help pages: all fit 80 columns and never truncate a name."""

from __future__ import annotations

import json
from typing import Any

import pytest
from typer.main import get_command

from aks_flex_lab.cli import app as lab_app
from aks_flex_node.agent.cli.help_pages import render_pages
from aks_flex_rp.cli import app as provider_app

WIDTH = 80


def pages(command: Any, path: tuple[str, ...], parent: Any = None) -> dict[str, tuple[Any, str]]:
    context = command.context_class(command, info_name=path[-1], parent=parent, terminal_width=WIDTH)
    found = {" ".join(path): (command, command.get_help(context))}
    for name, inner in getattr(command, "commands", {}).items():
        found |= pages(inner, (*path, name), context)
    return found


EVERY = pages(get_command(provider_app), ("aks-flex-rp",)) | pages(get_command(lab_app), ("aks-flex-lab",))


@pytest.mark.parametrize("name", EVERY)
def test_help_page_fits_80_columns_with_whole_option_names(name: str) -> None:
    command, page = EVERY[name]
    lines = page.splitlines()

    assert not [line for line in lines if len(line) > WIDTH]
    assert not [line for line in lines if line.endswith("...") and "Usage:" not in line and "{" not in line]
    assert not [line for line in lines if line.startswith("  -") and "<str>" in line]
    for parameter in command.params:
        if parameter.param_type_name == "option":
            assert all(option in page for option in parameter.opts)


def test_agent_help_pages_fit_80_columns() -> None:
    for name, page in json.loads(render_pages()).items():
        assert not [line for line in page.splitlines() if len(line) > WIDTH], name
