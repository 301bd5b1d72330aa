"""Help pages rendered in advance, so that `--help` does not import typer.

`python -m aks_flex_node.agent.cli.help_pages` renders them again; a test compares them with the commands.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

PAGES = Path(__file__).parent / "pages.json"
HELP_FLAGS = {"--help", "-h"}
WIDTH = 100


def find_page(arguments: list[str]) -> str | None:
    """The page that these words ask for, if they ask for one."""
    asks = not arguments or arguments[-1] in HELP_FLAGS
    if not asks or not PAGES.exists():
        return None
    name = " ".join(arguments[:-1])
    found = json.loads(PAGES.read_text()).get(name)
    return None if found is None else str(found)


def render_pages() -> str:
    """All pages, as the commands themselves say them."""
    from typer.main import get_command

    from aks_flex_node.agent.cli.app import app

    pages: dict[str, str] = {}
    _walk(get_command(app), [], None, pages)
    return json.dumps(pages, indent=1, ensure_ascii=False) + "\n"


def _walk(command: Any, way: list[str], above: Any, pages: dict[str, str]) -> None:
    name = " ".join(["aks-flex-node", *way]) if above is None else way[-1]
    settings = {**command.context_settings, "terminal_width": WIDTH, "max_content_width": WIDTH}
    context = command.context_class(command, info_name=name, parent=above, **settings)
    pages[" ".join(way)] = command.get_help(context)
    for word, below in getattr(command, "commands", {}).items():
        _walk(below, [*way, word], context, pages)


if __name__ == "__main__":
    PAGES.write_text(render_pages())
