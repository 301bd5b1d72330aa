"""The page of settings is the program's own."""

from __future__ import annotations

from pathlib import Path

from aks_flex_rp.settings_reference import update_page

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "provider.md"


def test_the_settings_in_the_page_are_those_of_the_program() -> None:
    assert PAGE.read_text() == update_page(PAGE.read_text())
    assert "| `limits.readsPerSecond` |" in PAGE.read_text()
