"""Checks that generated pages are up to date with the code."""

from __future__ import annotations

import runpy
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_cli_reference_page_matches_generated_text() -> None:
    made = runpy.run_path(str(ROOT / "scripts/cli_reference.py"))["written"]()

    assert (ROOT / "docs/reference/cli.md").read_text() == made, "run `scripts/docs references`"


def test_az_reference_page_matches_generated_text() -> None:
    made = runpy.run_path(str(ROOT / "scripts/az_reference.py"))["written"]()

    assert (ROOT / "docs/reference/az.md").read_text() == made, "run `scripts/docs references`"
