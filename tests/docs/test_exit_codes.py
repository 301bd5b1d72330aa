"""The exit codes in the help of each program are those of the page about troubleshooting."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from typer.main import get_command

from aks_flex_lab.cli import app as lab
from aks_flex_node.agent.cli.app import app as agent
from aks_flex_rp.cli import app as provider

if TYPE_CHECKING:
    import typer

PAGE = Path(__file__).parents[2] / "docs/how-to/troubleshoot.md"
PROGRAMS = {"aks-flex-node": agent, "aks-flex-rp": provider, "aks-flex-lab": lab}


def codes_of_help(app: typer.Typer) -> dict[str, str]:
    epilog = " ".join(str(get_command(app).epilog).split())
    listed = re.search(r"Exit codes: (.*? interrupted)\.", epilog)
    assert listed, epilog
    return dict(each.split(" ", 1) for each in listed[1].split(", "))


def codes_of_page(program: str) -> dict[str, str]:
    rows = [
        line.strip("|").split("|") for line in PAGE.read_text().splitlines() if re.match(r"\| (code|\d+) \|", line)
    ]
    column = [cell.strip() for cell in rows[0]].index(f"`{program}`")
    return {row[0].strip(): row[column].strip() for row in rows[1:] if row[column].strip()}


@pytest.mark.parametrize("program", PROGRAMS)
def test_exit_codes_in_help_are_those_of_troubleshooting(program: str) -> None:
    shown, documented = codes_of_help(PROGRAMS[program]), codes_of_page(program)

    assert shown.keys() == documented.keys()
    for code, text in shown.items():
        assert documented[code].startswith(text), code
