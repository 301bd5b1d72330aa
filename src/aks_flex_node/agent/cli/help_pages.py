"""Serves pre-rendered help pages, so that `--help` does not import typer.

`python -m aks_flex_node.agent.cli.help_pages` regenerates them; a test compares them with the commands.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

PAGES = Path(__file__).parent / "pages.json"
HELP_FLAGS = {"--help", "-h"}
WIDTH = 80  # columns of a terminal


def find_page(arguments: list[str]) -> str | None:
    """Returns the help page for the arguments, or None if they do not request help."""
    requested = not arguments or arguments[-1] in HELP_FLAGS
    if not requested or not PAGES.exists():
        return None
    name = " ".join(arguments[:-1])
    found = json.loads(PAGES.read_text()).get(name)
    return None if found is None else str(found)


def render_pages() -> str:
    """Renders the help pages of all commands as JSON."""
    from typer.main import get_command

    from aks_flex_node.agent.cli.app import app

    pages: dict[str, str] = {}
    _walk(get_command(app), [], None, pages)
    return json.dumps(pages, indent=1, ensure_ascii=False) + "\n"


def _walk(command: Any, path: list[str], parent: Any, pages: dict[str, str]) -> None:
    name = " ".join(["aks-flex-node", *path]) if parent is None else path[-1]
    settings = {**command.context_settings, "terminal_width": WIDTH, "max_content_width": WIDTH}
    context = command.context_class(command, info_name=name, parent=parent, **settings)
    pages[" ".join(path)] = command.get_help(context)
    for subname, subcommand in getattr(command, "commands", {}).items():
        _walk(subcommand, [*path, subname], context, pages)


if __name__ == "__main__":
    PAGES.write_text(render_pages())
