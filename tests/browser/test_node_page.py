"""The page of a node: how it is, why, what it has, what happened; live, and safe from what others wrote."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.browser.accessibility import judge, judge_on_every_screen
from tests.browser.fleet_data import HOSTILE, NEW, NO_ROUTE, OLD, RUNTIME
from tests.browser.navigation import follow, sign_in, sign_in_by_entra
from tests.service.rp.api.bodies import SECRET, principal
from tests.service.rp.api.fake_clusters import PLANT

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from tests.browser.providers import EntraProvider, Provider
    from tests.browser.viewports import Opened

# MSAL would rather have a form posted back, with which the browser would send no cookie of ours.
pytestmark = pytest.mark.filterwarnings("ignore:response_mode='form_post' is recommended")


def address(name: str, below: str = "") -> str:
    return f"/ui/nodes/{PLANT.subscription}/{PLANT.group}/{PLANT.name}/{name}{below}"


def look_at(page: Page, provider: Provider, name: str) -> str:
    """All that is written on the page of a node."""
    sign_in(page, provider, address(name))
    return page.get_by_role("main").inner_text()


def test_everybody_can_use_the_page(provider: Provider, open_page: Opened) -> None:
    page = open_page()
    sign_in(page, provider, address("lathe-hostile"))
    judge_on_every_screen(page, "node-hostile")


def test_a_node_that_is_not_ready_tells_its_cause_and_what_to_do(provider: Provider, open_page: Opened) -> None:
    page = open_page()
    text = look_at(page, provider, "lathe-stopped")
    assert "Not ready" in text
    assert RUNTIME in text
    assert "ServiceFailed" in text
    assert page.locator("main a[href^='/ui/help/']").count() > 0


def test_a_join_that_failed_shows_the_step_and_the_way_on(provider: Provider, open_page: Opened) -> None:
    page = open_page()
    look_at(page, provider, "oven-failed")
    step = page.locator("[aria-current=step]")
    assert "Join requested" in step.inner_text()
    assert NO_ROUTE in step.inner_text()
    judge_on_every_screen(page, "node-failed")
    follow(page, page.get_by_role("link", name="Create a new join command"))
    page.wait_for_url(f"**{address('oven-failed', '/token')}")


def test_what_was_undone_is_told_with_the_versions(provider: Provider, open_page: Opened) -> None:
    page = open_page()
    text = look_at(page, provider, "saw-rolled-back")
    assert "the one before runs again" in text
    row = page.get_by_role("row", name="Kubernetes").inner_text()
    assert NEW in row
    assert OLD in row
    assert f"versions.kubernetes: {OLD} → {NEW}" in text


def test_what_is_wanted_and_not_applied_stands_side_by_side(provider: Provider, open_page: Opened) -> None:
    fleet, name = provider.fleet, "press-behind"
    fleet.ready(name, nodeConfig={"labels": {"site": "hall-1"}})
    provider.running.admin.put(name, principal(nodeConfig={"labels": {"site": "hall-2"}, "maxPods": 50}, secret=None))
    page = open_page()
    look_at(page, provider, name)
    table = page.get_by_role("table", name="Changes not applied yet")
    assert "hall-1" in table.get_by_role("row", name="nodeConfig.labels.site").locator("del").inner_text()
    assert "hall-2" in table.get_by_role("row", name="nodeConfig.labels.site").locator("ins").inner_text()
    assert "added" in table.get_by_role("row", name="nodeConfig.maxPods").inner_text()
    judge(page, "node-behind")


def test_the_page_follows_without_being_loaded_again(provider: Provider, open_page: Opened) -> None:
    name = "oven-watched"
    provider.fleet.fetched(name)
    page = open_page()
    look_at(page, provider, name)
    assert "Configuration fetched" in page.locator("[aria-current=step]").inner_text()
    page.evaluate("window.same = true")
    provider.fleet.ready(name)
    page.get_by_text("The node is Ready and can run pods.").wait_for()
    assert page.evaluate("window.same")
    provider.running.admin.delete(name)
    page.get_by_text("The machine is unbootstrapped automatically").wait_for()


def test_nothing_that_others_wrote_becomes_part_of_the_page(provider: Provider, open_page: Opened) -> None:
    page = open_page()
    text = look_at(page, provider, "lathe-hostile")
    assert HOSTILE in text
    assert page.locator("main script, main img, main [onerror]").count() == 0


def test_no_secret_is_on_the_page(provider: Provider, open_page: Opened) -> None:
    page = open_page()
    look_at(page, provider, "press-1")
    page.get_by_text("Desired configuration as JSON").click()
    assert '"clientId"' in page.get_by_role("main").inner_text()
    for below in ("", "/edit", "/token", "/delete"):
        page.goto(provider.url + address("press-1", below))
        assert SECRET not in page.content()


def test_a_reader_sees_all_of_it_and_no_button(entra_provider: EntraProvider, open_page: Opened) -> None:
    page = open_page()
    sign_in_by_entra(page, entra_provider, entra_provider.reader, address("press-1"))
    assert "The node is Ready and can run pods." in page.get_by_role("main").inner_text()
    assert page.locator("main form, main a[href*=edit], main a[href*=token], main a[href*=delete]").count() == 0
    open_page.expect("status of 403")
    for below in ("/edit", "/token", "/delete"):
        page.goto(entra_provider.url + address("press-1", below))
        assert "Access denied" in page.content()


def test_all_events_of_the_node_are_a_link_away(provider: Provider, open_page: Opened) -> None:
    page = open_page()
    look_at(page, provider, "press-2")
    follow(page, page.get_by_role("link", name="All events of this node"))
    page.wait_for_url("**/ui/audit?resource=**")
    text = page.get_by_role("main").inner_text()
    assert "press-2" in text
    assert "press-1" not in text


def test_a_node_that_never_was_is_not_there(provider: Provider, open_page: Opened) -> None:
    page = open_page()
    open_page.expect("status of 404")
    assert "Not found" in look_at(page, provider, "nobody")
