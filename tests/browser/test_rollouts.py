"""Tests of the pages of roll-outs: start, live progress, gates, failures, actions, barred revisions, permissions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from playwright.sync_api import expect

from tests.browser.accessibility import judge_on_every_screen
from tests.browser.navigation import fill_in, follow, follow_link, post, press, sign_in, sign_in_by_entra, text_of
from tests.browser.test_node_page import address
from tests.browser.test_pool_forms import wrong_at
from tests.browser.test_pools import pool_address
from tests.service.rp.api.simulated_fleet import BAD, BETTER, SimulatedFleet
from tests.wait import until

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from tests.browser.providers import EntraProvider, Provider
    from tests.browser.viewports import Opened

APPROVAL = {"name": "person", "approval": {}}


def rollout_address(fleet: SimulatedFleet, name: str = "r1") -> str:
    return f"{pool_address(fleet.pool)}/rollouts/{name}"


def start_page(fleet: SimulatedFleet) -> str:
    return f"{pool_address(fleet.pool)}/start-rollout"


def working_fleet(provider: Provider, size: int = 4) -> SimulatedFleet:
    return SimulatedFleet(provider.running, size)


def stuck_fleet(provider: Provider, size: int = 4) -> SimulatedFleet:
    """Returns a pool with an active roll-out r1 whose nodes do not complete their updates."""
    fleet = working_fleet(provider, size)
    fleet.write(BETTER)
    fleet.stuck = set(fleet.names)
    fleet.start()
    return fleet


def writing_paths(fleet: SimulatedFleet) -> list[str]:
    """Returns the paths of all forms of roll-outs and barred revisions."""
    actions = [f"{rollout_address(fleet)}/{each}" for each in ("pause", "abort", "reverse", "approve", "delete")]
    return [*actions, start_page(fleet), f"{pool_address(fleet.pool)}/allow-revision/1"]


def order(page: Page, name: str) -> None:
    press(page, name)


def test_roll_out_is_started_and_followed_to_its_end(provider: Provider, open_page: Opened) -> None:
    fleet = working_fleet(provider)
    fleet.write(BETTER)
    page = open_page()
    sign_in(page, provider, pool_address(fleet.pool))
    follow_link(page, "Start a roll-out")
    assert page.get_by_label("Name of the roll-out").input_value() == "revision-2"
    assert page.get_by_label("Waves", exact=True).input_value() == "1, 10%, 50%, 100%"
    judge_on_every_screen(page, "rollout-new")
    fill_in(page, {"Waves": "1, 50% 100%", "Soak time": "0", "Unavailable nodes": "100%"})
    page.locator("#advanced summary").click()
    page.get_by_label("Limit for downloads ahead").fill("0")
    fleet.stuck = set(fleet.names)
    order(page, "Start roll-out")
    page.wait_for_url(f"**{rollout_address(fleet, 'revision-2')}")
    expect(page.get_by_role("main")).to_contain_text(f"{fleet.names[0]}: it is updating")
    expect(page.get_by_role("figure", name="Wave 1 of 3")).to_contain_text("Updating 1")
    judge_on_every_screen(page, "rollout-running")
    fleet.stuck.clear()
    fleet.work_until("Succeeded", name="revision-2")
    expect(page.get_by_label("State", exact=True)).to_contain_text("Succeeded")  # without a reload
    expect(page.get_by_role("figure", name="Wave 3 of 3: 2 nodes")).to_contain_text("Updated 2")
    assert fleet.shown("revision-2")["stageTimeoutSeconds"] == 0
    judge_on_every_screen(page, "rollout-succeeded")


def test_failed_node_is_shown_with_its_cause(provider: Provider, open_page: Opened) -> None:
    fleet = working_fleet(provider)
    fleet.write(BAD)
    fleet.start()
    fleet.work_until("Reversed")
    page = open_page()
    sign_in(page, provider, rollout_address(fleet))
    assert f"{fleet.names[0]}: containerd does not start." in text_of(page)
    row = page.get_by_role("region", name="Failed nodes table").get_by_role("row", name=fleet.names[0])
    assert "Reversed" in row.inner_text(), "the cause is kept after the reversal"
    judge_on_every_screen(page, "rollout-reversed")
    follow(page, page.get_by_role("link", name=fleet.pool, exact=True).first)
    row = page.get_by_role("region", name="List of barred revisions").get_by_role("row", name="r1")
    assert "containerd does not start." in row.inner_text()
    judge_on_every_screen(page, "pool-barred")
    page.goto(f"{provider.url}/ui/pools")
    assert page.get_by_role("row", name=fleet.pool).locator(".trouble").inner_text() == "1"

    open_page.expect("status of 409")
    page.goto(f"{provider.url}{start_page(fleet)}")
    order(page, "Start roll-out")
    assert "that revision failed in the roll-out 'r1'" in wrong_at(page, "Revision")
    judge_on_every_screen(page, "rollout-new-barred")
    page.goto(f"{provider.url}{pool_address(fleet.pool)}")
    follow_link(page, "Allow revision 2")
    assert "nodeConfig.maxPods=13" in text_of(page)
    judge_on_every_screen(page, "revision-allow")
    order(page, "Allow revision 2")
    page.wait_for_url(f"**{pool_address(fleet.pool)}")
    assert page.get_by_role("region", name="List of barred revisions").count() == 0
    assert fleet.api.pool("GET", fleet.pool).json["properties"]["barredRevisions"] == []


def test_halted_roll_out_is_reversed_after_confirmation(provider: Provider, open_page: Opened) -> None:
    fleet = working_fleet(provider)
    fleet.write(BAD)
    fleet.start(onFailure="halt")
    fleet.work_until("Halted")
    page = open_page()
    sign_in(page, provider, rollout_address(fleet))
    failed = page.get_by_role("region", name="Failed nodes table")
    assert "containerd does not start." in failed.get_by_role("row", name=fleet.names[0]).inner_text()
    judge_on_every_screen(page, "rollout-halted")
    follow_link(page, "Reverse")
    assert "1 node that has got revision 2 goes back" in text_of(page)
    judge_on_every_screen(page, "rollout-reverse")
    assert fleet.shown()["state"] == "Halted", "nothing happens before the confirmation"

    page = open_page(java_script_enabled=False)
    sign_in(page, provider, rollout_address(fleet))
    follow_link(page, "Reverse")
    order(page, "Reverse r1")
    page.wait_for_url(f"**{rollout_address(fleet)}")
    fleet.work_until("Reversed")
    page.reload()
    follow_link(page, "Delete")
    order(page, "Delete r1")
    page.wait_for_url(f"**{pool_address(fleet.pool)}")
    assert fleet.rollout("GET").status == 404


def test_gate_is_approved_and_roll_out_paused_resumed_aborted(provider: Provider, open_page: Opened) -> None:
    fleet = working_fleet(provider)
    fleet.write(BETTER)
    fleet.start(gates=[APPROVAL])
    fleet.work_until("Gates")
    page = open_page()
    sign_in(page, provider, rollout_address(fleet))
    assert "a person: approval of the gate person of wave 1" in text_of(page)
    judge_on_every_screen(page, "rollout-approval")
    order(page, "Pause")
    assert "a person: it is paused" in text_of(page)
    assert fleet.shown()["paused"]
    order(page, "Resume")
    fleet.stuck = set(fleet.names)
    order(page, "Approve person")
    gate = page.get_by_role("region", name="Gates table").get_by_role("row", name="person")
    assert "Approved by " in gate.inner_text()
    expect(page.get_by_role("main")).to_contain_text(f"{fleet.names[1]}: it is updating")
    follow_link(page, "Abort")
    assert "No further node gets revision 2: 2 nodes keep the revision they have." in text_of(page)
    judge_on_every_screen(page, "rollout-abort")
    order(page, "Abort r1")
    assert page.get_by_label("State", exact=True).locator(".state").inner_text() == "Aborted"
    assert page.get_by_role("button", name="Pause").count() == 0


def test_errors_are_at_fields_and_input_is_kept(provider: Provider, open_page: Opened) -> None:
    fleet = working_fleet(provider, size=2)
    fleet.write(BETTER)
    page = open_page()
    open_page.expect("status of (400|409)")
    sign_in(page, provider, start_page(fleet))
    fill_in(page, {"Labels of the first wave": "site", "Soak time": "soon"})
    order(page, "Start roll-out")
    expect(page.get_by_role("alert")).to_be_focused()
    assert "2 errors" in page.get_by_role("alert").inner_text()
    assert "is not a label" in wrong_at(page, "Labels of the first wave")
    assert "is not a duration" in wrong_at(page, "Soak time")
    judge_on_every_screen(page, "rollout-new-wrong")
    fill_in(
        page,
        {
            "Labels of the first wave": "site=north",
            "Soak time": "0",
            "Waves": "50%, 10%",
            "Unavailable nodes": "many",
            "Failure domain": "site=0",
        },
    )
    page.locator("#advanced summary").click()
    page.get_by_label("Gates", exact=True).fill('[{"name": "g", "webhook": {"receiver": 7}}]')
    order(page, "Start roll-out")
    assert "100%" in wrong_at(page, "Waves")
    assert "'many' is not a number of nodes" in wrong_at(page, "Unavailable nodes")
    assert "1% to 100%" in wrong_at(page, "Failure domain")
    assert "receiver" in wrong_at(page, "Gates")
    assert page.get_by_label("Labels of the first wave").input_value() == "site=north"
    page.goto(f"{provider.url}{start_page(fleet)}")
    page.get_by_label("Name of the roll-out").fill("Not A Name")
    order(page, "Start roll-out")
    assert "is not a name of a roll-out" in wrong_at(page, "Name of the roll-out")
    fleet.stuck = set(fleet.names)
    fleet.start()
    page.get_by_label("Name of the roll-out").fill("other")
    order(page, "Start roll-out")
    assert "is active" in wrong_at(page, "Abort the active roll-out, and start this one")
    judge_on_every_screen(page, "rollout-new-active")
    page.get_by_label("Abort the active roll-out").check()
    order(page, "Start roll-out")
    page.wait_for_url(f"**{rollout_address(fleet, 'other')}")
    assert fleet.shown()["state"] == "Aborted"


def test_node_and_pools_name_the_active_roll_out(provider: Provider, open_page: Opened) -> None:
    fleet = stuck_fleet(provider)
    until(lambda: bool(fleet.shown()["waveProgress"][0]["updating"]), "the first wave begins", 10)
    page = open_page()
    sign_in(page, provider, address(fleet.names[-1]))
    assert "In the roll-out r1 of revision 2, wave 3: Pending, waits for wave 1 to complete" in text_of(page)
    judge_on_every_screen(page, "node-in-rollout")
    page.goto(f"{provider.url}/ui/pools")
    assert "r1" in page.get_by_role("row", name=fleet.pool).inner_text()
    judge_on_every_screen(page, "pools-with-rollout")
    follow(page, page.get_by_role("row", name=fleet.pool).get_by_role("link", name="r1"))
    follow(page, page.get_by_role("figure", name="Wave 3 of 3").get_by_role("link", name="Pending"))
    rows = page.get_by_role("region", name="Nodes of the roll-out").locator("tbody th")
    assert [each.inner_text() for each in rows.all()] == fleet.names[2:]
    fleet.rollout("POST", "r1", "abort")


def test_nodes_of_a_large_roll_out_are_paged(provider: Provider, open_page: Opened) -> None:
    fleet = stuck_fleet(provider, size=27)
    page = open_page()
    sign_in(page, provider, rollout_address(fleet))
    rows = page.get_by_role("region", name="Nodes of the roll-out").locator("tbody th")
    first = [each.inner_text() for each in rows.all()]
    follow_link(page, "Next")
    second = [each.inner_text() for each in rows.all()]
    assert (len(first), len(second)) == (25, 2)
    assert sorted([*first, *second]) == sorted(fleet.names)
    judge_on_every_screen(page, "rollout-second-page")
    fleet.rollout("POST", "r1", "abort")


def test_reader_sees_a_roll_out_but_cannot_act(entra_provider: EntraProvider, open_page: Opened) -> None:
    fleet = working_fleet(entra_provider, size=2)
    fleet.write(BETTER)
    fleet.start(gates=[APPROVAL])
    fleet.work_until("Gates")
    page = open_page()
    sign_in_by_entra(page, entra_provider, entra_provider.reader, rollout_address(fleet))
    assert "approval of the gate person" in text_of(page)
    assert page.get_by_role("main").get_by_role("button").count() == 0
    judge_on_every_screen(page, "rollout-reader")
    for path in writing_paths(fleet):
        answer = post(page, entra_provider, path)
        assert (answer.status, "Access denied" in answer.text()) == (403, True), path
    assert fleet.shown()["state"] == "Gates"
    page.goto(f"{entra_provider.url}{rollout_address(fleet)}")
    follow_link(page, "All events of this roll-out")
    started = page.get_by_role("row", name="Roll-out started")
    assert started.get_by_role("link").get_attribute("href") == rollout_address(fleet)
    page.goto(f"{entra_provider.url}{pool_address(fleet.pool)}")
    assert page.get_by_role("link", name="Start a roll-out").count() == 0


def test_forged_forms_are_refused(provider: Provider, open_page: Opened) -> None:
    fleet = stuck_fleet(provider, size=2)
    page = open_page()
    sign_in(page, provider, rollout_address(fleet))
    form = {"name": "forged", "revision": "2"}
    for path in writing_paths(fleet):
        assert post(page, provider, path, **form, csrf="x").status == 403, path
        assert post(page, provider, path, **form, origin="https://evil.example").status == 403, path
    assert (fleet.shown()["state"], fleet.shown()["paused"]) == ("Running", False)
    for path in (f"{rollout_address(fleet)}/explode", f"{rollout_address(fleet, 'none')}/pause"):
        assert post(page, provider, path).status == 404, path
    assert page.request.get(f"{provider.url}{rollout_address(fleet)}/pause").status == 404
    fleet.rollout("POST", "r1", "abort")
