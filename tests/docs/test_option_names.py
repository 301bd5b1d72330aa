"""The page about az maps every option of `aks-flex-rp node create` and `update` to its name in az."""

from __future__ import annotations

import re
from pathlib import Path

from typer.main import get_command

from aks_flex_rp.cli.node_commands import app

DOCS = Path(__file__).parents[2] / "docs"
OPTION = re.compile(r"--[a-z0-9-]+")


def options_of_update() -> set[str]:
    command = get_command(app).commands["update"]  # type: ignore[attr-defined] # a group of commands
    return {name for each in command.params for name in (*each.opts, *each.secondary_opts) if OPTION.fullmatch(name)}


def options_of_az(page: str) -> set[str]:
    section = page[page.index("## update") :]
    return set(OPTION.findall(section[: section.index("\n## ", 4)]))


def test_every_option_of_node_update_has_its_name_in_az(reference: dict[str, str]) -> None:
    page = (DOCS / "how-to/azure-cli-provider.md").read_text()
    table = page[page.index("## Options of aks-flex-rp and az") :]
    rows = [line.split("|")[1:3] for line in table.splitlines() if line.startswith("| `--")]
    mapped = {name for row in rows for name in OPTION.findall(row[0])}
    named_in_az = {name for row in rows for name in OPTION.findall(row[1])}

    in_az = options_of_az(reference["az.md"])
    assert options_of_update() - mapped <= in_az
    assert mapped <= options_of_update()
    assert named_in_az <= in_az
