"""What a machine says of itself is shown as words, whatever it says."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlencode

import pytest

from tests.browser.fleets import HOSTILE, node_page
from tests.browser.judging import judge
from tests.browser.screens import on_every_screen
from tests.browser.visiting import sign_in

if TYPE_CHECKING:
    from tests.browser.providers import Provider
    from tests.browser.screens import Opened, Screen


@pytest.mark.parametrize("path", ["/", "/?search=lathe-hostile&trouble=yes", node_page("lathe-hostile")])
def test_a_hostile_cause_is_read_and_not_run(provider: Provider, open_page: Opened, path: str) -> None:
    page = open_page()
    sign_in(page, provider, path)
    assert page.get_by_text(HOSTILE).first.is_visible()
    assert page.locator("img[src=x], main script").count() == 0


@pytest.mark.parametrize("name", ["search", "state", "version", "cluster", "sort", "page", "order"])
def test_a_hostile_address_is_read_and_not_run(provider: Provider, open_page: Opened, name: str) -> None:
    page = open_page()
    sign_in(page, provider)
    page.goto(f"{provider.url}/?{urlencode({name: HOSTILE})}")
    assert page.get_by_role("heading", name="Fleet").is_visible()
    assert page.locator("img[src=x], main script").count() == 0


@on_every_screen
def test_a_hostile_node_does_not_break_its_page(provider: Provider, open_page: Opened, screen: Screen) -> None:
    page = open_page(screen)
    sign_in(page, provider, node_page("lathe-hostile"))
    judge(page, f"node-hostile-{screen}")
