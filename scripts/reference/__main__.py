"""Writes all generated reference pages into a directory: `python -m scripts.reference DIRECTORY`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from scripts.reference.az_options import az_page
from scripts.reference.commands import commands_page
from scripts.reference.configuration import configuration_page
from scripts.reference.errors import errors_page
from scripts.reference.names import names_page
from scripts.reference.provider_settings import provider_settings_page

if TYPE_CHECKING:
    from collections.abc import Callable

PAGES: dict[str, Callable[[], str]] = {
    "az.md": az_page,
    "cli.md": commands_page,
    "configuration.md": configuration_page,
    "errors.md": errors_page,
    "names.md": names_page,
    "provider-settings.md": provider_settings_page,
}


def write_pages(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for name, page in PAGES.items():
        (directory / name).write_text(page())


if __name__ == "__main__":
    write_pages(Path(sys.argv[1]))
