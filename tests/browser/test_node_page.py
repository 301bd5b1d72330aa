"""Tests of a node's page: status, diagnosis, settings and history, with refresh and escaping."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.browser.accessibility import judge, judge_on_every_screen
from tests.browser.fleet_data import NEW, NO_ROUTE, OLD, RUNTIME
from tests.browser.navigation import follow, follow_link, press, sign_in, sign_in_by_entra, text_of
from tests.service.rp.api.bodies import SECRET, client_of, principal
from tests.service.rp.api.fake_clusters import PLANT

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from tests.browser.providers import EntraProvider, Provider
    from tests.browser.viewports import Opened


def address(name: str, below: str = "") -> str:
    return f"/ui/nodes/{PLANT.subscription}/{PLANT.group}/{PLANT.name}/{name}{below}"


def node_page_text(page: Page, provider: Provider, name: str) -> str:
    """Returns all text of a node's page."""
    sign_in(page, provider, address(name))
    return text_of(page)


def test_node_page_is_accessible_on_every_screen(provider: Provider, open_page: Opened) -> None:
    page = open_page()
    sign_in(page, provider, address("lathe-hostile"))
    judge_on_every_screen(page, "node-hostile")


def test_node_page_shows_cause_and_remedy_when_not_ready(provider: Provider, open_page: Opened) -> None:
    page = open_page()
    text = node_page_text(page, provider, "lathe-stopped")
    assert "Not ready" in text
    assert RUNTIME.replace("`", "") in text
    assert "ServiceFailed" in text
    judge_on_every_screen(page, "node-not-ready")
    follow(page, page.locator("main a[href='/ui/help/service-failed']").first)
    assert "service-failed" in text_of(page)
    judge_on_every_screen(page, "help")


def test_node_page_shows_failed_join_step_and_link_to_new_command(provider: Provider, open_page: Opened) -> None:
    page = open_page()
    node_page_text(page, provider, "oven-failed")
    step = page.locator("[aria-current=step]")
    assert "Join requested" in step.inner_text()
    assert NO_ROUTE in step.inner_text()
    judge_on_every_screen(page, "node-failed")
    follow_link(page, "Create a new join command")
    page.wait_for_url(f"**{address('oven-failed', '/token')}")


def test_node_page_shows_rolled_back_versions(provider: Provider, open_page: Opened) -> None:
    page = open_page()
    text = node_page_text(page, provider, "saw-rolled-back")
    assert "the one before runs again" in text
    row = page.get_by_role("row", name="Kubernetes").inner_text()
    assert NEW in row
    assert OLD in row
    assert f"versions.kubernetes: {OLD} → {NEW}" in text


def test_node_page_shows_diff_of_desired_and_applied_config(provider: Provider, open_page: Opened) -> None:
    fleet, name = provider.fleet, "press-behind"
    fleet.ready(name, nodeConfig={"labels": {"site": "hall-1"}})
    changed = {"labels": {"site": "hall-2"}, "maxPods": 50}
    provider.running.admin.put(name, principal(client_of(name), nodeConfig=changed, secret=None))
    page = open_page()
    node_page_text(page, provider, name)
    table = page.get_by_role("table", name="Changes not applied yet")
    assert "hall-1" in table.get_by_role("row", name="nodeConfig.labels.site").locator("del").inner_text()
    assert "hall-2" in table.get_by_role("row", name="nodeConfig.labels.site").locator("ins").inner_text()
    assert "added" in table.get_by_role("row", name="nodeConfig.maxPods").inner_text()
    judge(page, "node-behind")


def test_node_page_updates_live(provider: Provider, open_page: Opened) -> None:
    name = "oven-watched"
    provider.fleet.fetched(name)
    page = open_page()
    node_page_text(page, provider, name)
    assert "Configuration fetched" in page.locator("[aria-current=step]").inner_text()
    page.evaluate("window.same = true")
    provider.fleet.ready(name)
    page.get_by_text("The node is Ready and can run pods.").wait_for()
    assert page.evaluate("window.same")
    provider.running.admin.delete(name)
    page.get_by_text("The machine is unbootstrapped automatically").wait_for()


def test_node_pages_contain_no_secret(provider: Provider, open_page: Opened) -> None:
    page = open_page()
    node_page_text(page, provider, "press-1")
    page.get_by_text("Desired configuration as JSON").click()
    assert '"clientId"' in text_of(page)
    for below in ("", "/edit", "/token", "/delete"):
        page.goto(provider.url + address("press-1", below))
        assert SECRET not in page.content()


def test_reader_sees_node_page_without_actions(entra_provider: EntraProvider, open_page: Opened) -> None:
    page = open_page()
    sign_in_by_entra(page, entra_provider, entra_provider.reader, address("press-1"))
    assert "The node is Ready and can run pods." in text_of(page)
    assert page.locator("main form, main a[href*=edit], main a[href*=token], main a[href*=delete]").count() == 0
    open_page.expect("status of 403")
    for below in ("/edit", "/token", "/delete"):
        page.goto(entra_provider.url + address("press-1", below))
        assert "Access denied" in page.content()


def test_node_page_links_to_audit_events_of_node(provider: Provider, open_page: Opened) -> None:
    page = open_page()
    node_page_text(page, provider, "press-2")
    follow_link(page, "All events of this node")
    page.wait_for_url("**/ui/audit?resource=**")
    text = text_of(page)
    assert "press-2" in text
    assert "press-1" not in text


def test_page_of_unknown_node_returns_not_found(provider: Provider, open_page: Opened) -> None:
    page = open_page()
    open_page.expect("status of 404")
    assert "Not found" in node_page_text(page, provider, "nobody")


def test_missing_node_page_keeps_navigation_on_every_screen(provider: Provider, open_page: Opened) -> None:
    page = open_page()
    open_page.expect("status of 404")
    sign_in(page, provider)
    page.goto(provider.url + address("nobody"))
    assert "Not found" in text_of(page)
    judge_on_every_screen(page, "node-missing")
    follow(page, page.get_by_role("navigation", name="Main").get_by_role("link", name="Audit"))
    page.wait_for_url("**/ui/audit")


def test_node_page_shows_machine_and_resumes_paused_node(provider: Provider, open_page: Opened) -> None:
    fleet, name = provider.fleet, "press-paused"
    fleet.ready(name, nodeConfig={"updatePolicy": {"paused": True, "drain": False}})
    fleet.on_machine(
        name, id="0123456789abcdef", hostName="press-4.hall-1.example", address="10.0.0.4", os="Debian 13"
    )
    page = open_page()
    text = node_page_text(page, provider, name)
    for known in ("Paused.", "0123456789abcdef", "press-4.hall-1.example", "10.0.0.4", "Debian 13"):
        assert known in text
    judge_on_every_screen(page, "node-paused")
    press(page, "Resume")
    assert "Paused." not in text_of(page)
    assert provider.running.admin.get(name).json["properties"]["nodeConfig"]["updatePolicy"] == {"drain": False}
