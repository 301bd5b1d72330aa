"""Tests of the form that creates a node: its fields and the errors at them, and its preview."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from playwright.sync_api import expect

from tests.browser.accessibility import judge_on_every_screen
from tests.browser.fleet_data import HOSTILE
from tests.browser.navigation import fill_in, post, press, sign_in, sign_in_by_entra, text_of
from tests.browser.providers import running_pages
from tests.browser.viewports import Screen
from tests.browser.wizard import (
    CANARY,
    CLIENT,
    begin,
    choose_principal,
    command_on,
    create,
    create_with_token,
    preview,
)
from tests.service.rp.api.bodies import token
from tests.service.rp.api.fake_clusters import PLANT

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.sync_api import Page

    from aks_flex_lab.pki import CertificateAuthority, CertificatePair
    from tests.browser.providers import EntraProvider, Provider
    from tests.browser.viewports import Opened


def problem_at(page: Page, label: str) -> str:
    """Returns the error at a field, as a screen reader finds it."""
    told = page.get_by_label(label, exact=True).get_attribute("aria-describedby") or ""
    return page.locator(f"#{told.split()[-1]}").inner_text()


def properties(provider: Provider, name: str) -> dict[str, Any]:
    found: dict[str, Any] = provider.running.admin.get(name).json["properties"]
    return found


def test_create_form_is_accessible_on_every_screen(provider: Provider, open_page: Opened) -> None:
    page = open_page()
    sign_in(page, provider, "/ui/create")
    open_page.expect("status of 400")
    judge_on_every_screen(page, "create")
    choose_principal(page)
    for title in ("Versions", "Maintenance window"):
        page.locator("summary", has_text=title).click()
    fill_in(page, {"Labels": "-site=", "Taints": "dedicated:Never", "Client secret": CANARY})
    create(page)
    judge_on_every_screen(page, "create-wrong")
    fill_in(page, {"Node name": "made-everywhere", "Labels": "site=hall-1", "Taints": "", "Client secret": CANARY})
    preview(page)
    judge_on_every_screen(page, "create-preview")
    page.get_by_label("Client secret").fill(CANARY)
    create(page)
    page.wait_for_url("**/joining")
    judge_on_every_screen(page, "created")


def test_create_works_without_javascript_and_back_keeps_input(provider: Provider, open_page: Opened) -> None:
    page, name = open_page(java_script_enabled=False), "plain-1"
    begin(page, provider, name)
    page.get_by_label("Managed identity", exact=True).check()
    page.get_by_label("Client ID of the identity").fill(CLIENT)
    page.get_by_label("Authentication of the kubelet").select_option("certificate")
    page.locator("#versions summary").click()
    page.get_by_label("Kubernetes", exact=True).fill("1.33.13")
    page.get_by_label("Managed node").select_option("no")
    page.get_by_label("Drift policy").select_option("repair")
    fill_in(page, {"Maximum pods": "50", "Labels": "site=hall-1\nline=3", "Taints": "dedicated:NoExecute"})
    preview(page)
    rows = page.get_by_role("table", name="Changed settings")
    assert "dedicated:NoExecute" in rows.get_by_role("row", name="nodeConfig.taints").inner_text()
    assert provider.running.admin.get(name).status == 404, "a preview writes nothing"
    press(page, "Back")
    assert page.get_by_label("Node name").input_value() == name
    assert page.get_by_label("Managed identity", exact=True).is_checked()
    assert page.get_by_label("Managed node").input_value() == "no"
    preview(page)
    create(page)
    assert page.url.endswith(f"/{name}/joining")
    made = properties(provider, name)
    assert made["azureAuth"] == {"method": "managedIdentity", "managedIdentity": {"clientId": CLIENT}}
    assert made["kubernetesAuth"] == {"method": "certificate"}
    assert made["versions"] == {"kubernetes": "1.33.13"}
    assert not made.get("continuousMonitoring")
    assert made["nodeConfig"] == {
        "labels": {"site": "hall-1", "line": "3"},
        "taints": [{"key": "dedicated", "effect": "NoExecute"}],
        "maxPods": 50,
        "driftPolicy": "repair",
    }


def test_create_shows_validation_errors_at_fields_and_keeps_input(provider: Provider, open_page: Opened) -> None:
    page = open_page()
    open_page.expect("status of (400|409)")
    begin(page, provider, "Press_1")
    create(page)
    assert "lower-case letters" in problem_at(page, "Node name")
    assert page.get_by_label("Node name").input_value() == "Press_1"
    expect(page.get_by_role("alert")).to_be_focused()
    page.get_by_label("Node name").fill("press-1")
    with page.expect_navigation():
        page.get_by_label("Node name").press("Enter")
    assert "already" in problem_at(page, "Node name")
    page.locator("#versions summary").click()
    fill_in(page, {"Node name": "wrong-1", "Kubernetes": "1.35.0", "Maximum pods": "9999"})
    page.get_by_label("Managed identity", exact=True).check()
    preview(page)
    assert "newer than the cluster's" in problem_at(page, "Kubernetes")
    assert "1024" in problem_at(page, "Maximum pods")
    assert "needs the clientId or principalId" in page.locator("#azureAuth-method .problem").inner_text()
    assert page.get_by_role("alert").get_by_role("link").count() == 3


def test_create_page_escapes_hostile_input(provider: Provider, open_page: Opened) -> None:
    page = open_page()
    open_page.expect("status of 400")
    sign_in(page, provider, "/ui/create")
    page.get_by_label("Node name").evaluate("(field, text) => { field.value = text }", HOSTILE)
    create(page)
    assert "<script>" in page.get_by_role("alert").inner_text()
    fill_in(page, {"Node name": "hostile-1", "Labels": f"a={HOSTILE}"})
    create(page)
    assert page.get_by_label("Labels").input_value() == f"a={HOSTILE}"
    assert "<script>" in problem_at(page, "Labels")
    assert page.locator("main script, main img").count() == 0


def test_create_page_never_shows_client_secret_again(provider: Provider, open_page: Opened) -> None:
    """The form is shown again because the cluster is unavailable; the secret is not in it."""
    page = open_page()
    begin(page, provider, "secret-1")
    choose_principal(page)
    open_page.expect("status of (400|503)")
    create(page)
    assert "The secret is needed" in problem_at(page, "Client secret")
    provider.running.clusters.away = True
    page.get_by_label("Client secret").fill(CANARY)
    create(page)
    assert "does not answer" in page.get_by_role("alert").inner_text()
    assert "Enter it again" in text_of(page)
    provider.running.clusters.away = False
    assert CANARY not in page.content()
    page.get_by_label("Client secret").fill(CANARY)
    preview(page)
    assert CANARY not in page.content()
    page.get_by_label("Client secret").fill(CANARY)
    create(page)
    page.wait_for_url("**/joining")
    bundle = provider.running.admin.fetch(command_on(page).split("'")[1])
    assert bundle.json["config"]["azure"]["servicePrincipal"]["clientSecret"] == CANARY
    assert CANARY not in page.content()
    assert CANARY not in provider.running.log


def test_node_is_as_its_pool_unless_the_form_says_otherwise(provider: Provider, open_page: Opened) -> None:
    node = {"unbootstrapOnDelete": False, "updatePolicy": {"paused": True}}
    provider.running.admin.put_pool("quiet", {"continuousMonitoring": False, "nodeConfig": node})
    page = open_page()
    create_with_token(page, provider, "alone-1")
    assert properties(provider, "alone-1")["continuousMonitoring"] is True
    page.goto(f"{provider.url}/ui/create")
    fill_in(page, {"Node name": "quiet-1", "Pool": "quiet"})
    page.get_by_label("Pause changes").select_option("no")
    create(page)
    page.wait_for_url("**/joining")
    made = properties(provider, "quiet-1")
    assert made["effective"]["continuousMonitoring"] is False
    assert made["effective"]["nodeConfig"] == {**node, "updatePolicy": {"paused": False}, "maxPods": 110}


def test_create_does_not_overwrite_node_created_concurrently(provider: Provider, open_page: Opened) -> None:
    page = open_page()
    begin(page, provider, "race-1")
    preview(page)
    provider.running.admin.put("race-1", token(labels={"of": "somebody-else"}))
    open_page.expect("status of 409")
    create(page)
    assert "already" in problem_at(page, "Node name")
    assert properties(provider, "race-1")["nodeConfig"]["labels"] == {"of": "somebody-else"}


def test_reader_cannot_create_and_page_names_required_role(entra_provider: EntraProvider, open_page: Opened) -> None:
    page = open_page()
    sign_in_by_entra(page, entra_provider, entra_provider.reader, "/ui/create")
    assert "Ask the cluster owner for the Contributor role" in text_of(page)
    assert page.get_by_role("button", name="Create node").count() == 0
    judge_on_every_screen(page, "create-reader")
    answer = post(page, entra_provider, "/ui/create", cluster=PLANT.key, name="by-reader", to="save")
    assert answer.status == 403
    assert entra_provider.running.admin.get("by-reader").status == 404
    denied = entra_provider.running.admin.audit("by-reader").json["value"]
    assert [(each["what"], each["outcome"]) for each in denied] == [("write", "denied")]


def test_create_page_without_clusters_explains_cluster_add(
    authority: CertificateAuthority, certificate: CertificatePair, open_page: Opened, tmp_path: Path
) -> None:
    with running_pages(authority, certificate, tmp_path) as provider:
        provider.running.call(provider.running.service.store.delete_cluster(PLANT.key))
        page = open_page(Screen(360))
        sign_in(page, provider, "/ui/create")
        assert "aks-flex-rp cluster add" in text_of(page)
        judge_on_every_screen(page, "create-nowhere")
