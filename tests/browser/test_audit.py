"""Tests of the audit page: search, download, and permissions."""

from __future__ import annotations

import csv
import io
import json
import time
from typing import TYPE_CHECKING

from aks_flex_rp.store.model import AuditAction, AuditEvent, AuditOutcome
from tests.browser.accessibility import judge_on_every_screen
from tests.browser.fleet_data import HOSTILE
from tests.browser.navigation import follow_link, press, sign_in, sign_in_by_entra, text_of
from tests.browser.providers import running_pages
from tests.browser.viewports import Screen
from tests.service.rp.api.fake_clusters import NEIGHBOUR, PLANT

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.sync_api import Page

    from aks_flex_lab.pki import CertificateAuthority, CertificatePair
    from tests.browser.providers import EntraProvider, Provider
    from tests.browser.viewports import Opened

FORMULA = "=HYPERLINK(1)"
MANY = 120


def record(provider: Provider, *events: AuditEvent) -> None:
    provider.running.call(provider.running.service.store.record(*events))


def happened(what: str, who: str = "somebody", node: str = "press-1", outcome: str = "ok") -> AuditEvent:
    return AuditEvent(
        time.time(),
        who,
        AuditAction(what),
        PLANT.node(node),
        "192.0.2.7",
        "request-1",
        AuditOutcome(outcome),
        {"why": "so"},
    )


def rows(page: Page) -> list[str]:
    return page.locator("tbody tr").all_inner_texts()


def apply(page: Page) -> None:
    press(page, "Apply")


def test_audit_page_is_accessible_and_escapes_hostile_text(provider: Provider, open_page: Opened) -> None:
    record(provider, happened("certificate.denied", outcome="denied"), happened("update", HOSTILE, "lathe-hostile"))
    page = open_page()
    sign_in(page, provider, "/ui/audit")
    page.locator("tbody summary").nth(1).click()
    assert HOSTILE in page.get_by_role("table").inner_text()
    judge_on_every_screen(page, "audit")
    page.goto(f"{provider.url}/ui/audit?who=nobody")
    assert page.get_by_role("heading", name="No matching events").is_visible()
    judge_on_every_screen(page, "audit-nothing")


def test_audit_page_filters_events(provider: Provider, open_page: Opened) -> None:
    record(
        provider,
        happened("delete", "ann@example.com", "audit-1"),
        happened("delete", "ann@example.com", "audit-2"),
        happened("write", "bob@example.com", "audit-1", "denied"),
    )
    page = open_page()
    sign_in(page, provider, "/ui/audit")
    page.get_by_role("searchbox", name="Node").fill("audit-1")
    apply(page)
    assert len(rows(page)) == 2
    page.get_by_label("Outcome").select_option("denied")
    apply(page)
    [only] = rows(page)
    assert "Change denied" in only
    assert "bob@example.com" in only
    follow_link(page, "Clear")
    page.get_by_label("Caller").fill("ann@example.com")
    page.get_by_role("combobox", name="Event").select_option("Deleted")
    apply(page)
    assert len(rows(page)) == 2
    page.locator("input[name=until]").fill("2020-01-01")
    apply(page)
    assert not rows(page)
    page.goto(f"{provider.url}/ui/audit?resource={PLANT.node('AUDIT-2')}")
    assert len(rows(page)) == 1
    assert page.get_by_role("searchbox", name="Node").input_value() == "AUDIT-2"


def test_older_audit_events_are_on_further_pages(provider: Provider, open_page: Opened) -> None:
    record(provider, *(happened("update", node=f"many-{number}") for number in range(MANY)))
    page = open_page()
    sign_in(page, provider, "/ui/audit?who=somebody&what=update")
    seen = []
    for _ in range(2):
        seen += rows(page)
        follow_link(page, "Older")
    seen += rows(page)
    assert len(seen) >= MANY
    assert len(set(page.locator("tbody details").evaluate_all("all => all.map(each => each.id)"))) == len(rows(page))
    assert "many-119" in seen[0]
    follow_link(page, "Newest")
    assert "many-119" in rows(page)[0]


def test_audit_events_export_as_csv_and_json(provider: Provider, open_page: Opened) -> None:
    record(provider, happened("delete", FORMULA, "taken-1"), happened("create", "ann@example.com", "taken-1"))
    page = open_page()
    sign_in(page, provider, "/ui/audit?node=taken-1")
    with page.expect_download() as taken:
        page.get_by_role("link", name="Export as CSV").click()
    assert taken.value.suggested_filename.endswith(".csv")
    first, second = csv.DictReader(io.StringIO(taken.value.path().read_text()))
    assert (first["what"], first["who"]) == ("create", "ann@example.com")
    assert second["who"] == f"'{FORMULA}"
    with page.expect_download() as taken:
        page.get_by_role("link", name="Export as JSON").click()
    events = json.loads(taken.value.path().read_text())["value"]
    assert [each["who"] for each in events] == ["ann@example.com", FORMULA]
    assert events[0]["detail"] == {"why": "so"}


def test_reader_sees_audit_events_of_own_clusters_only(entra_provider: EntraProvider, open_page: Opened) -> None:
    record(entra_provider, AuditEvent(time.time(), "eve", AuditAction.CREATE, NEIGHBOUR.node("secret-node")))
    page = open_page()
    sign_in_by_entra(page, entra_provider, entra_provider.reader, "/ui/audit")
    assert any("press-1" in each for each in rows(page))
    assert not any("Signed in" in each or "secret-node" in each for each in rows(page))
    assert page.get_by_role("combobox", name="Event").get_by_role("option", name="Signed in").count() == 0
    page.goto(f"{entra_provider.url}/ui/audit?what=signIn")
    assert not rows(page)
    for path in ("/ui/audit", "/ui/audit.csv", "/ui/audit.json"):
        for asked in (f"resource={NEIGHBOUR}", f"cluster={NEIGHBOUR.key}", "resource=/", "resource=/subscriptions"):
            answer = page.request.get(f"{entra_provider.url}{path}?{asked}")
            assert answer.status == 403, f"{path}?{asked}"
    taken = page.request.get(f"{entra_provider.url}/ui/audit.csv").text()
    assert "press-1" in taken
    assert "secret-node" not in taken
    assert "signIn" not in taken


def test_audit_page_is_forbidden_without_any_role(entra_provider: EntraProvider, open_page: Opened) -> None:
    page = open_page()
    sign_in_by_entra(page, entra_provider, entra_provider.stranger, "/ui/audit")
    assert "Ask the cluster owner for the Reader role" in text_of(page)
    judge_on_every_screen(page, "audit-nowhere")
    for path in ("/ui/audit.csv", "/ui/audit.json", "/ui/audit.csv?before=99", f"/ui/audit.csv?resource={PLANT}"):
        assert page.request.get(f"{entra_provider.url}{path}").status == 403


def test_audit_page_without_events_shows_empty_state(
    authority: CertificateAuthority, certificate: CertificatePair, open_page: Opened, tmp_path: Path
) -> None:
    with running_pages(authority, certificate, tmp_path) as provider:
        page = open_page(Screen(360))
        sign_in(page, provider, f"/ui/audit?cluster={PLANT.key}")
        assert page.get_by_role("heading", name="No events yet").is_visible()
        judge_on_every_screen(page, "audit-empty")
