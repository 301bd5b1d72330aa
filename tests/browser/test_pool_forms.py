"""Tests of creating, editing and deleting a pool: preview, errors at fields, conflicts, permissions, attacks."""

from __future__ import annotations

import json
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import expect

from tests.browser.accessibility import judge, judge_on_every_screen
from tests.browser.fleet_data import HOSTILE
from tests.browser.navigation import fill_in, follow_link, post, press, sign_in, sign_in_by_entra, text_of
from tests.browser.test_pools import fill, pool_address, put
from tests.service.rp.api.enrolling_machine import PoolEnrolment
from tests.service.rp.api.fake_clusters import PLANT

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from tests.browser.providers import EntraProvider, Provider
    from tests.browser.viewports import Opened

numbers = count(1)
MIRRORS = {"registryMirrors": {"docker.io": ["https://mirror.example"]}}


@pytest.fixture
def pool() -> str:
    return f"form{next(numbers)}"


def shown(provider: Provider, pool: str) -> Any:
    return provider.running.admin.pool("GET", pool).json["properties"]


def preview(page: Page) -> None:
    press(page, "Preview")


def rest(page: Page, document: Any) -> None:
    page.locator("#advanced summary").click()
    page.get_by_label("Other settings as JSON").fill(json.dumps(document))


def wrong_at(page: Page, label: str) -> str:
    """Returns the error at a field, as a screen reader finds it."""
    described = (page.get_by_label(label, exact=True).get_attribute("aria-describedby") or "").split()
    return page.locator(f"#{described[-1]}").inner_text()


def test_pool_is_created_after_a_preview(provider: Provider, open_page: Opened, pool: str) -> None:
    page = open_page()
    sign_in(page, provider, "/ui/pools")
    follow_link(page, "New pool")
    assert page.get_by_label("Managed node").is_checked()
    judge_on_every_screen(page, "pool-new")
    fill_in(
        page,
        {
            "Name": pool,
            "Description": "Pumps of the north",
            "Labels": "site=north\nexample.com/line=7",
            "Taints": "dedicated=edge:NoSchedule",
            "Kubernetes": "1.34.4",
            "Maximum pods": "60",
        },
    )
    rest(page, {"nodeConfig": {"kubelet": {"kubeReserved": {"cpu": "100m"}}}})
    preview(page)
    assert provider.running.admin.pool("GET", pool).status == 404, "a preview writes nothing"
    assert "No node changes." in text_of(page)
    changes = page.get_by_role("table", name="Changed settings")
    assert "Pumps of the north" in changes.get_by_role("row", name="description").inner_text()
    assert "60" in changes.get_by_role("row", name="nodeConfig.maxPods").inner_text()
    taint = changes.get_by_role("row", name="nodeConfig.taints['dedicated:NoSchedule']")
    assert "dedicated=edge:NoSchedule" in taint.inner_text()
    judge_on_every_screen(page, "pool-new-preview")

    press(page, "Back")
    assert page.get_by_label("Labels").input_value() == "site=north\nexample.com/line=7"
    assert page.get_by_label("Managed node").is_checked()
    preview(page)
    press(page, "Create pool")
    page.wait_for_url(f"**{pool_address(pool)}")
    made = shown(provider, pool)
    assert (made["description"], made["revision"]) == ("Pumps of the north", 1)
    assert made["template"] == {
        "continuousMonitoring": True,
        "versions": {"kubernetes": "1.34.4"},
        "nodeConfig": {
            "labels": {"site": "north", "example.com/line": "7"},
            "taints": [{"key": "dedicated", "value": "edge", "effect": "NoSchedule"}],
            "maxPods": 60,
            "kubelet": {"kubeReserved": {"cpu": "100m"}},
        },
    }


def test_edit_makes_a_revision_and_changes_no_node(provider: Provider, open_page: Opened, pool: str) -> None:
    fill(provider, pool)
    page = open_page()
    sign_in(page, provider, pool_address(pool))
    follow_link(page, "Edit")
    judge_on_every_screen(page, "pool-edit")
    fill_in(page, {"Maximum pods": "70", "Labels": "site=south\nrack=1", "Start time": "22:00"})
    page.get_by_label("Sunday").check()
    preview(page)
    assert "No node changes until you apply revision 3. The 2 nodes of the pool keep" in text_of(page)
    changes = page.get_by_role("table", name="Changed settings")
    assert changes.get_by_role("row", name="nodeConfig.maxPods").inner_text().split()[2::2] == ["60", "70"]
    judge_on_every_screen(page, "pool-preview")
    assert shown(provider, pool)["revision"] == 2, "a preview writes nothing"

    press(page, "Save revision 3")
    page.wait_for_url(f"**{pool_address(pool)}")
    template = shown(provider, pool)["template"]["nodeConfig"]
    assert (template["maxPods"], template["labels"]) == (70, {"site": "south", "rack": "1"})
    assert template["updatePolicy"] == {"maintenanceWindow": {"start": "22:00", "days": ["Sunday"]}}
    node = provider.running.admin.get(f"{pool}-1").json["properties"]
    assert (node["poolRevision"], node["config"]["node"]["maxPods"]) == (1, 50)
    assert page.get_by_role("button", name="Apply revision 3 to 2 nodes").is_visible()


def test_edit_of_description_makes_no_revision(provider: Provider, open_page: Opened, pool: str) -> None:
    fill(provider, pool, 0)
    page = open_page(java_script_enabled=False)
    sign_in(page, provider, f"{pool_address(pool)}/edit")
    page.get_by_label("Description").fill("Pumps")
    preview(page)
    assert "this makes no new revision" in text_of(page)
    press(page, "Save description")
    assert (shown(provider, pool)["revision"], shown(provider, pool)["description"]) == (2, "Pumps")
    page.goto(f"{provider.url}{pool_address(pool)}/edit")
    preview(page)
    page.wait_for_url(f"**{pool_address(pool)}")  # without changes there is nothing to preview


def test_errors_are_at_fields_and_input_is_kept(provider: Provider, open_page: Opened, pool: str) -> None:
    put(provider, pool, {})
    page = open_page()
    open_page.expect("status of (400|409)")
    sign_in(page, provider, "/ui/pools/new")
    fill_in(page, {"Name": "North-1", "Labels": "site"})
    rest(page, {"description": "x", "azureAuth": {"servicePrincipal": {"clientSecret": "typed-and-not-shown"}}})
    preview(page)
    summary = page.get_by_role("alert")
    assert "4 errors" in summary.inner_text()
    expect(summary).to_be_focused()
    assert "is not the name of a pool" in wrong_at(page, "Name")
    assert "is not a label" in wrong_at(page, "Labels")
    assert "A template contains no secrets" in text_of(page)
    assert "Set description in its field above" in text_of(page)
    assert "typed-and-not-shown" not in page.content()
    judge_on_every_screen(page, "pool-new-wrong")

    fill_in(
        page,
        {
            "Name": f"{pool}x",
            "Description": "d" * 300,
            "Labels": "site=hall 9",
            "Taints": "a:NoSchedule\nb:Never",
            "Kubernetes": "1.99.0",
            "Other settings as JSON": '{"azureAuth": {"arc": {"machineName": "press-1"}}}',
        },
    )
    preview(page)
    assert "256" in wrong_at(page, "Description")
    assert "hall 9" in wrong_at(page, "Labels")
    assert "b:Never" in wrong_at(page, "Taints")
    assert "newer than the cluster's" in wrong_at(page, "Kubernetes")
    assert "could act as each other" in wrong_at(page, "Other settings as JSON")
    assert page.get_by_label("Labels").input_value() == "site=hall 9"

    page.goto(f"{provider.url}/ui/pools/new")
    page.get_by_label("Name", exact=True).fill(pool)
    preview(page)
    assert f"The pool {pool} already exists" in wrong_at(page, "Name")


def test_edit_conflict_shows_other_change_and_merges(provider: Provider, open_page: Opened, pool: str) -> None:
    put(provider, pool, {"nodeConfig": {"labels": {"site": "hall-1", "line": "1"}}})
    page = open_page()
    sign_in(page, provider, f"{pool_address(pool)}/edit")
    page.get_by_label("Labels").fill("site=hall-3\nline=2")
    preview(page)
    put(provider, pool, {"nodeConfig": {"labels": {"site": "hall-2", "line": "1"}, "maxPods": 33}}, HOSTILE[:200])
    open_page.expect("status of 409")
    press(page, "Save revision 2")
    told = page.get_by_role("table", name="Changes by another user")
    assert "hall-3" in told.get_by_role("row", name="nodeConfig.labels.site").inner_text()
    assert "current value is used" in told.get_by_role("row", name="nodeConfig.maxPods").inner_text()
    assert shown(provider, pool)["revision"] == 2
    judge_on_every_screen(page, "pool-edit-raced")
    preview(page)
    press(page, "Save revision 3")
    assert shown(provider, pool)["template"]["nodeConfig"] == {
        "labels": {"site": "hall-3", "line": "2"},
        "maxPods": 33,
    }


def test_hostile_input_is_escaped(provider: Provider, open_page: Opened, pool: str) -> None:
    page = open_page()
    open_page.expect("status of 400")
    sign_in(page, provider, "/ui/pools/new?cluster=%22%3E%3Cscript%3Ealert(1)%3C/script%3E")
    for label in ("Name", "Kubernetes"):
        page.get_by_label(label, exact=True).fill(HOSTILE)
    fill_in(page, {"Labels": f"{HOSTILE}={HOSTILE}", "Taints": f"{HOSTILE}:{HOSTILE}"})
    rest(page, {HOSTILE: HOSTILE, "nodeConfig": {"kubelet": {HOSTILE: HOSTILE}}})
    preview(page)
    assert HOSTILE in page.get_by_label("Labels").input_value()
    assert "<script>" in wrong_at(page, "Name")
    assert page.locator("main script, main img").count() == 0

    page.goto(f"{provider.url}/ui/pools/new")
    fill_in(page, {"Name": pool, "Description": HOSTILE})
    rest(page, {"nodeConfig": {"kubelet": {"extraConfig": {HOSTILE: HOSTILE, "a'b\"c": "x</textarea><script>"}}}})
    preview(page)
    assert page.get_by_text(HOSTILE).first.is_visible()
    assert page.locator("main script, main img").count() == 0
    judge(page, "pool-hostile-preview")
    press(page, "Create pool")
    follow_link(page, "Edit")
    assert page.get_by_label("Description").input_value() == HOSTILE
    assert "x</textarea><script>" in page.get_by_label("Other settings as JSON").input_value()
    assert page.locator("main script, main img").count() == 0
    follow_link(page, "Cancel")
    follow_link(page, "Delete")
    assert page.locator("main script, main img").count() == 0


def test_pool_is_deleted_only_without_nodes_and_by_name(provider: Provider, open_page: Opened, pool: str) -> None:
    fill(provider, pool, 1)
    admin, page = provider.running.admin, open_page()
    sign_in(page, provider, pool_address(pool))
    follow_link(page, "Delete")
    assert "A pool with nodes cannot be deleted. This pool has 1 node." in text_of(page)
    assert page.get_by_role("button", name="Delete").count() == 0
    judge_on_every_screen(page, "pool-delete-with-nodes")

    assert admin.delete(f"{pool}-1").status in {200, 204}
    PoolEnrolment.of(admin, pool, maxUses=1)
    page.reload()
    assert "Its 1 enrolment ends" in text_of(page)
    open_page.expect("status of (400|409)")
    page.get_by_label("enter the pool name").fill("other")
    press(page, f"Delete {pool}")
    assert "The name does not match this pool." in text_of(page)
    judge_on_every_screen(page, "pool-delete")

    assert admin.put(f"{pool}-2", {"properties": {"poolName": pool}}).status == 201
    page.get_by_label("enter the pool name").fill(pool)
    press(page, f"Delete {pool}")
    assert f"The pool '{pool}' has 1 node: {pool}-2." in page.get_by_role("alert").inner_text()

    assert admin.delete(f"{pool}-2").status in {200, 204}
    page.goto(f"{provider.url}{pool_address(pool)}/delete")
    put(provider, pool, {"nodeConfig": {"maxPods": 9}})
    page.get_by_label("enter the pool name").fill(pool)
    press(page, f"Delete {pool}")
    assert "The pool was not deleted." in page.get_by_role("alert").inner_text()
    page.get_by_label("enter the pool name").fill(pool)
    press(page, f"Delete {pool}")
    page.wait_for_url("**/ui/pools")
    assert admin.pool("GET", pool).status == 404


def test_contributor_cannot_set_what_only_owners_may(
    entra_provider: EntraProvider, open_page: Opened, pool: str
) -> None:
    put(entra_provider, pool, {"nodeConfig": {**MIRRORS, "maxPods": 50}})
    page = open_page()
    open_page.expect("status of 403")
    sign_in_by_entra(page, entra_provider, entra_provider.contributor, f"{pool_address(pool)}/edit")
    page.get_by_label("Maximum pods").fill("60")
    rest(page, {"nodeConfig": {"registryMirrors": {"docker.io": ["https://evil.example"]}}})
    assert "You are not an owner" in text_of(page)
    preview(page)
    told = wrong_at(page, "Other settings as JSON")
    assert "Only owners of the cluster can set properties.template.nodeConfig.registryMirrors" in told
    assert "evil.example" in page.get_by_label("Other settings as JSON").input_value()
    judge_on_every_screen(page, "pool-edit-not-owner")
    page.get_by_label("Other settings as JSON").fill(json.dumps({"nodeConfig": MIRRORS}))
    preview(page)
    press(page, "Save revision 2")
    assert shown(entra_provider, pool)["template"]["nodeConfig"] == {**MIRRORS, "maxPods": 60}


def test_save_without_preview_has_the_same_checks(
    entra_provider: EntraProvider, open_page: Opened, pool: str
) -> None:
    put(entra_provider, pool, {"nodeConfig": MIRRORS})
    page = open_page()
    sign_in_by_entra(page, entra_provider, entra_provider.contributor, f"{pool_address(pool)}/edit")
    etag, edit = page.locator("input[name=etag]").last.input_value(), f"{pool_address(pool)}/edit"
    form = {"etag": etag, "to": "save", "nodeConfig-unbootstrapOnDelete": "yes"}
    assert post(page, entra_provider, edit, **form, rest="{}").status == 403
    mirrors = json.dumps({"nodeConfig": MIRRORS})
    by_exec = {**form, "kubernetesAuth-method": "exec", "rest": mirrors}
    assert post(page, entra_provider, edit, **by_exec).status == 400
    new = {**form, "cluster": PLANT.key, "name": f"{pool}x", "rest": mirrors}
    assert post(page, entra_provider, "/ui/pools/new", **new).status == 403
    assert entra_provider.running.admin.pool("GET", f"{pool}x").status == 404
    assert shown(entra_provider, pool)["template"] == {"nodeConfig": MIRRORS}


def test_reader_cannot_create_edit_or_delete(entra_provider: EntraProvider, open_page: Opened, pool: str) -> None:
    put(entra_provider, pool, {})
    page = open_page()
    open_page.expect("status of 403")
    sign_in_by_entra(page, entra_provider, entra_provider.reader, pool_address(pool))
    assert page.get_by_role("link", name="Edit").or_(page.get_by_role("link", name="Delete")).count() == 0
    etag = entra_provider.running.admin.pool("GET", pool).json["etag"]
    form = {"etag": etag, "name": pool, "to": "save", "nodeConfig-labels": "a=b", "cluster": PLANT.key}
    for path in (f"{pool_address(pool)}/edit", f"{pool_address(pool)}/delete", "/ui/pools/new"):
        answer = post(page, entra_provider, path, **form)
        assert answer.status == 403
        assert "Access denied" in answer.text()
    assert entra_provider.running.admin.pool("GET", pool).json["etag"] == etag
    page.goto(f"{entra_provider.url}{pool_address(pool)}/edit")
    assert "Access denied" in text_of(page)
    page.goto(f"{entra_provider.url}/ui/pools")
    assert page.get_by_role("link", name="New pool").count() == 0
    page.goto(f"{entra_provider.url}/ui/pools/new")
    assert "Ask the cluster owner for the Contributor role" in text_of(page)
    judge_on_every_screen(page, "pool-new-reader")


def test_forged_forms_are_refused(provider: Provider, open_page: Opened, pool: str) -> None:
    put(provider, pool, {})
    page = open_page()
    sign_in(page, provider, pool_address(pool))
    etag = provider.running.admin.pool("GET", pool).json["etag"]
    body = {"etag": etag, "name": f"{pool}y", "to": "save", "nodeConfig-labels": "a=b", "cluster": PLANT.key}
    for path in (f"{pool_address(pool)}/edit", f"{pool_address(pool)}/delete", "/ui/pools/new"):
        assert post(page, provider, path, **body, csrf="x").status == 403
        assert post(page, provider, path, **body, origin="https://evil.example").status == 403
    assert provider.running.admin.pool("GET", pool).json["etag"] == etag
    assert provider.running.admin.pool("GET", f"{pool}y").status == 404
    strange = {**body, "name": "x/apply", "cluster": f"{PLANT.key}/flexnodepools/y"}
    posted = post(page, provider, "/ui/pools/new", **strange)
    assert posted.status == 400
    assert "is not the name of a pool" in posted.text()
