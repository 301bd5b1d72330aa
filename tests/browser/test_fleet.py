"""Tests of the fleet page: its content and its refresh."""

from __future__ import annotations

from typing import TYPE_CHECKING

from playwright.sync_api import expect

from tests.browser.accessibility import judge_on_every_screen
from tests.browser.navigation import follow, follow_link, give_key, press

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from tests.browser.providers import Provider
    from tests.browser.viewports import Opened


def fleet(open_page: Opened, provider: Provider, query: str = "") -> Page:
    page = open_page()
    page.goto(f"{provider.url}/{query}")
    give_key(page, provider.key)
    expect(page.get_by_role("heading", name="Fleet")).to_be_visible()
    return page


def names(page: Page) -> list[str]:
    return page.locator("tbody th").all_inner_texts()


def search(page: Page, words: str) -> None:
    with page.expect_navigation():
        page.get_by_label("Search").fill(words)
    page.wait_for_url("**/?search=*")


def test_fleet_page_is_accessible_on_every_screen(open_page: Opened, provider: Provider) -> None:
    judge_on_every_screen(fleet(open_page, provider), "fleet")


def test_fleet_page_shows_state_and_cause_of_each_node(open_page: Opened, provider: Provider) -> None:
    page = fleet(open_page, provider)
    for name, words in {
        "press-1": ("Ready",),
        "lathe-stopped": ("Not ready", "containerd is not running"),
        "mill-silent": ("Not reporting",),
        "oven-new": ("Created",),
        "oven-failed": ("Join failed", "The API server did not answer"),
        "saw-drifted": ("Ready", "Drifted"),
        "saw-upgrading": ("outdated", "→ v1.34.4"),
    }.items():
        row = page.get_by_role("row").filter(has=page.get_by_role("link", name=name, exact=True))
        for word in words:
            expect(row).to_contain_text(word)


def test_fleet_page_searches_filters_and_sorts_without_apply_button(open_page: Opened, provider: Provider) -> None:
    page = fleet(open_page, provider)
    search(page, "press line=3")
    assert names(page) == ["press-3"]
    follow_link(page, "Clear")
    search(page, "oven")
    with page.expect_navigation():
        page.get_by_label("State").select_option("Failed")
    page.wait_for_url("**state=Failed*")
    assert names(page) == ["oven-failed"]
    follow_link(page, "Clear")
    follow(page, page.get_by_role("link", name="Node", exact=True))
    page.wait_for_url("**order=desc*")
    shown = names(page)
    assert shown == sorted(shown, reverse=True)


def test_fleet_search_without_matches_shows_empty_state(open_page: Opened, provider: Provider) -> None:
    page = fleet(open_page, provider, "?search=nobody")
    expect(page.get_by_role("heading", name="No matching nodes")).to_be_visible()
    judge_on_every_screen(page, "fleet-none")


def test_fleet_page_updates_live_and_keeps_focus(open_page: Opened, provider: Provider) -> None:
    page = fleet(open_page, provider, "?search=newcomer")
    expect(page.get_by_role("heading", name="No matching nodes")).to_be_visible()
    provider.fleet.never_joined("newcomer")
    row = page.get_by_role("row").filter(has_text="newcomer")
    expect(row).to_contain_text("Created")
    page.get_by_role("link", name="newcomer").focus()
    provider.fleet.ready("newcomer")
    expect(row).to_contain_text("Ready")
    expect(page.get_by_role("link", name="newcomer")).to_be_focused()  # the focus is unchanged
    assert provider.running.admin.delete("newcomer").status == 200


def test_fleet_page_works_without_javascript(open_page: Opened, provider: Provider) -> None:
    page = open_page(java_script_enabled=False)
    page.goto(f"{provider.url}/?search=press")
    give_key(page, provider.key)
    page.get_by_label("Search").fill("press-2")
    press(page, "Apply")
    assert names(page) == ["press-2"]
