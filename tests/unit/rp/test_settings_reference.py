"""Checks that the settings page is up to date with the code."""

from __future__ import annotations

from pathlib import Path

from aks_flex_rp.settings_reference import update_page

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "provider.md"


def test_settings_reference_page_is_up_to_date() -> None:
    assert PAGE.read_text() == update_page(PAGE.read_text())
    assert "| `limits.readsPerSecond` |" in PAGE.read_text()
