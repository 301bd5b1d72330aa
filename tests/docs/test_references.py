"""Pages that come from the code say what the code says."""

from __future__ import annotations

import runpy
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_page_of_commands_is_what_the_programs_say() -> None:
    made = runpy.run_path(str(ROOT / "scripts/cli_reference.py"))["written"]()

    assert (ROOT / "docs/reference/cli.md").read_text() == made, "run `scripts/docs references`"


def test_the_page_of_az_is_what_az_has_loaded() -> None:
    made = runpy.run_path(str(ROOT / "scripts/az_reference.py"))["written"]()

    assert (ROOT / "docs/reference/az.md").read_text() == made, "run `scripts/docs references`"
