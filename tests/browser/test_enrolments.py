"""Tests of the pages of enrolments: create one, decide about machines, revoke it, and hostile facts."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

import pytest

from aks_flex_node.api.node_keys import fingerprint
from aks_flex_rp.dashboard import enrolment_pages
from tests.browser.accessibility import judge_on_every_screen
from tests.browser.navigation import fill_in, follow, follow_link, press, sign_in, text_of
from tests.browser.test_node_page import address
from tests.browser.test_pools import pool_address, put
from tests.service.rp.api.enrolling_machine import EnrollingMachine, PoolEnrolment

if TYPE_CHECKING:
    from tests.browser.providers import Provider
    from tests.browser.viewports import Opened

numbers = count(1)
HOSTILE = "<img src=x onerror=alert(1)><script>alert(2)</script>"


@pytest.fixture
def pool(provider: Provider) -> str:
    name = f"enrol{next(numbers)}"
    put(provider, name, {"continuousMonitoring": True})
    return name


def test_enrolment_is_created_and_its_line_shown_once(provider: Provider, open_page: Opened, pool: str) -> None:
    page = open_page()
    sign_in(page, provider, pool_address(pool))
    follow_link(page, "Enrol machines")
    judge_on_every_screen(page, "enrolments-none")
    page.get_by_label("Machines", exact=True).fill("many")
    press(page, "Create enrolment")
    assert "must be numbers" in text_of(page)
    judge_on_every_screen(page, "enrolments-problem")
    fill_in(page, {"Machines": "3", "Names of the nodes": "web-{number:02}"})
    page.get_by_label("Approval").select_option("automatic")
    press(page, "Create enrolment")
    line = page.locator("#line").inner_text()
    judge_on_every_screen(page, "enrolments-created")
    url = line.split("'")[1]
    assert EnrollingMachine(f"{pool}-a").enrol(provider.running.admin.connection, url).status == 200
    page.goto(f"{provider.url}{pool_address(pool)}/enrolments")
    assert url not in page.content()
    assert "1 of 3" in text_of(page)


def test_list_of_machines_names_the_wrong_line(provider: Provider, open_page: Opened, pool: str) -> None:
    page = open_page()
    sign_in(page, provider, f"{pool_address(pool)}/enrolments")
    page.get_by_label("Approval").select_option("allowList")
    page.get_by_label("List of machines").fill("serialNumber\nABC1\n0000\n")
    press(page, "Create enrolment")
    assert "line 3: '0000' is not a serialNumber" in text_of(page)


def test_machines_are_approved_rejected_and_escaped(provider: Provider, open_page: Opened, pool: str) -> None:
    admin = provider.running.admin
    made = PoolEnrolment.of(admin, pool, approval="manual", maxUses=2, nodeName=f"{pool}-{{number}}")
    hostile = EnrollingMachine(HOSTILE, more={"serialNumber": HOSTILE, "os": HOSTILE, "systemUuid": "<b>x</b>"})
    other = made.machine("b")
    for machine in (hostile, other):
        assert made.enrol(machine).status == 202
    page = open_page()
    sign_in(page, provider, f"{pool_address(pool)}/enrolments")
    follow(page, page.get_by_role("link", name=made.id))
    assert page.get_by_text(HOSTILE).first.is_visible()
    assert page.locator("img[src=x], main script, main td b").count() == 0
    judge_on_every_screen(page, "enrolment-machines")
    shown = [fingerprint(each.key.thumbprint) for each in (hostile, other)]
    follow(page, page.locator(f"#reject-{shown[0]}"))
    follow(page, page.locator(f"#approve-{shown[1]}"))
    assert [made.enrol(each).status for each in (hostile, other)] == [409, 200]
    press(page, "Revoke")
    assert page.locator("#state").inner_text() == "Revoked"
    assert page.get_by_role("button", name="Revoke").count() == 0


def test_node_is_released_for_reimaging(provider: Provider, open_page: Opened, pool: str) -> None:
    made = PoolEnrolment.of(provider.running.admin, pool, maxUses=1)
    machine = made.machine("a")
    made.enrol(machine)
    page = open_page()
    sign_in(page, provider, address(machine.hostname))
    follow_link(page, "Release")
    judge_on_every_screen(page, "release")
    press(page, "Release")
    assert [each["state"] for each in made.machines] == ["Released"]
    assert made.enrol(machine.wiped()).status == 200


def test_page_of_a_revoked_key_names_the_open_enrolment(provider: Provider, open_page: Opened, pool: str) -> None:
    made = PoolEnrolment.of(provider.running.admin, pool, maxUses=1)
    machine = made.machine("a")
    made.enrol(machine)
    page = open_page()
    sign_in(page, provider, address(machine.hostname, "/revoke-key"))
    assert "Revoke the enrolment as well" in text_of(page)
    judge_on_every_screen(page, "revoke-key-of-an-enrolled-node")
    follow(page, page.get_by_role("link", name=made.id))
    press(page, "Revoke")
    page.goto(provider.url + address(machine.hostname, "/revoke-key"))
    assert "Revoke the enrolment" not in text_of(page)


def test_active_enrolments_are_shown_before_many_others(
    provider: Provider, open_page: Opened, pool: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Enrolments have random keys, so that a list by key could hide the ones that are in use."""
    monkeypatch.setattr(enrolment_pages, "MAX_SHOWN", 3)
    active = [PoolEnrolment.of(provider.running.admin, pool)]
    others = [PoolEnrolment.of(provider.running.admin, pool) for _ in range(6)]
    for each in others:
        assert each.act("revoke").status == 200
    active.append(PoolEnrolment.of(provider.running.admin, pool))
    page = open_page()
    sign_in(page, provider, f"{pool_address(pool)}/enrolments")
    shown = page.locator("tbody th").all_inner_texts()
    assert shown == [active[1].id, active[0].id, others[-1].id]
    assert "The first 3 are shown" in text_of(page)
