"""Tests that text reported by a machine is escaped on all pages."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlencode

import pytest

from tests.browser.fleet_data import HOSTILE, node_page
from tests.browser.navigation import sign_in

if TYPE_CHECKING:
    from tests.browser.providers import Provider
    from tests.browser.viewports import Opened


@pytest.mark.parametrize("path", ["/", "/?search=lathe-hostile&trouble=yes", node_page("lathe-hostile")])
def test_page_escapes_hostile_failure_cause(provider: Provider, open_page: Opened, path: str) -> None:
    page = open_page()
    sign_in(page, provider, path)
    assert page.get_by_text(HOSTILE).first.is_visible()
    assert page.locator("img[src=x], main script").count() == 0


def test_fleet_page_escapes_every_query_parameter(provider: Provider, open_page: Opened) -> None:
    page = open_page()
    sign_in(page, provider)
    for name in ("search", "state", "version", "cluster", "sort", "page", "order"):
        page.goto(f"{provider.url}/?{urlencode({name: HOSTILE})}")
        assert page.get_by_role("heading", name="Fleet").is_visible()
        assert page.locator("img[src=x], main script").count() == 0
