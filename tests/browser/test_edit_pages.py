"""Tests of editing a node, its new join command and its deletion, with and without permission."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from playwright.sync_api import expect

from aks_flex_node.api.node_keys import KEY_HEADER, fingerprint
from tests.browser.accessibility import judge, judge_on_every_screen
from tests.browser.navigation import fill_in, follow, follow_link, post, press, sign_in, sign_in_by_entra, text_of
from tests.browser.test_node_page import address
from tests.node_key_client import HeldKey
from tests.service.rp.api.bodies import SECRET, client_of, principal
from tests.service.rp.api.fake_clusters import PLANT

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from tests.browser.providers import EntraProvider, Provider
    from tests.browser.viewports import Opened

KUBELET = {"kubeReserved": {"cpu": "100m"}, "extraConfig": {"maxOpenFiles": 5}}
SETTINGS = {"labels": {"site": "hall-1"}, "kubelet": KUBELET, "updatePolicy": {"drain": False}}


def properties(provider: Provider, name: str) -> dict[str, Any]:
    found: dict[str, Any] = provider.running.admin.get(name).json["properties"]
    return found


def edited(page: Page, provider: Provider, name: str) -> None:
    sign_in(page, provider, address(name, "/edit"))


def save(page: Page) -> None:
    follow(page, page.get_by_role("button", name="Save", exact=True))


def test_edit_form_is_accessible_on_every_screen(provider: Provider, open_page: Opened) -> None:
    page = open_page()
    edited(page, provider, "press-3")
    open_page.expect("status of 400")
    fill_in(page, {"Labels": "site", "Kubernetes": "1.33.13"})
    save(page)
    judge_on_every_screen(page, "edit")


def test_edit_writes_only_changed_settings(provider: Provider, open_page: Opened) -> None:
    provider.fleet.ready("press-edited", nodeConfig=SETTINGS)
    page = open_page()
    edited(page, provider, "press-edited")
    fill_in(
        page,
        {
            "Labels": "site=hall-2\nline=7",
            "Taints": "dedicated=edge:NoSchedule",
            "Maximum pods": "60",
            "Start time": "22:00",
        },
    )
    page.get_by_label("Sunday").check()
    page.get_by_label("Pause changes").select_option("yes")
    save(page)
    page.wait_for_url(f"**{address('press-edited')}")
    found = properties(provider, "press-edited")
    window = {"start": "22:00", "days": ["Sunday"]}
    assert found["nodeConfig"] == {
        "labels": {"site": "hall-2", "line": "7"},
        "taints": [{"key": "dedicated", "value": "edge", "effect": "NoSchedule"}],
        "maxPods": 60,
        "kubelet": KUBELET,
        "updatePolicy": {"drain": False, "paused": True, "maintenanceWindow": window},
    }
    assert found["continuousMonitoring"]
    assert provider.running.admin.credentials("press-edited").json["servicePrincipal"]["clientSecret"] == SECRET


def test_edit_without_changes_keeps_config_version(provider: Provider, open_page: Opened) -> None:
    before = properties(provider, "press-4")
    page = open_page()
    edited(page, provider, "press-4")
    save(page)
    page.wait_for_url(f"**{address('press-4')}")
    assert properties(provider, "press-4")["configVersion"] == before["configVersion"]


def test_edit_shows_errors_at_fields_and_keeps_input_except_secrets(provider: Provider, open_page: Opened) -> None:
    page = open_page()
    edited(page, provider, "press-3")
    open_page.expect("status of 400")
    fill_in(page, {"Labels": "site=hall 9", "Kubernetes": "1.99.0"})
    page.locator("#identity summary").click()
    page.get_by_label("Client secret").fill("typed-and-not-to-be-sent-back")
    save(page)
    summary = page.get_by_role("alert")
    assert "2 errors" in summary.inner_text()
    expect(summary).to_be_focused()
    labels, version = page.get_by_label("Labels"), page.get_by_label("Kubernetes", exact=True)
    assert labels.input_value() == "site=hall 9"
    assert labels.get_attribute("aria-invalid") == version.get_attribute("aria-invalid") == "true"
    described = (version.get_attribute("aria-describedby") or "").split()
    assert "newer than the cluster's API server" in page.locator(f"#{described[-1]}").inner_text()
    summary.get_by_role("link").first.click()
    expect(page.locator("#nodeConfig-labels:focus, #versions-kubernetes:focus")).to_be_visible()
    assert "typed-and-not-to-be-sent-back" not in page.content()
    assert "Enter it again" in page.content()


def test_edit_to_older_version_requires_confirmation(provider: Provider, open_page: Opened) -> None:
    provider.fleet.ready("press-older")
    page = open_page()
    edited(page, provider, "press-older")
    open_page.expect("status of 400")
    assert page.get_by_label("Allow downgrade").count() == 0
    page.get_by_label("Kubernetes", exact=True).fill("1.33.13")
    save(page)
    page.get_by_label("Allow downgrade").check()
    save(page)
    page.wait_for_url(f"**{address('press-older')}")
    assert properties(provider, "press-older")["versions"]["kubernetes"] == "1.33.13"


def test_edit_conflict_shows_other_change_and_can_be_saved(provider: Provider, open_page: Opened) -> None:
    name = "press-raced"
    provider.fleet.ready(name, nodeConfig={"labels": {"site": "hall-1", "line": "1"}})
    page = open_page()
    edited(page, provider, name)
    theirs = {"labels": {"site": "hall-2", "line": "1", "shift": "night"}, "maxPods": 33}
    provider.running.admin.put(name, principal(client_of(name), secret=None, nodeConfig=theirs))
    open_page.expect("status of 409")
    page.get_by_label("Labels").fill("site=hall-3\nline=2")
    save(page)
    told = page.get_by_role("table", name="Changes by another user")
    assert "hall-3" in told.get_by_role("row", name="nodeConfig.labels.site").inner_text()
    assert "current value is used" in told.get_by_role("row", name="nodeConfig.maxPods").inner_text()
    assert properties(provider, name)["nodeConfig"] == theirs
    judge(page, "edit-raced")
    save(page)
    page.wait_for_url(f"**{address(name)}")
    both = {"site": "hall-3", "line": "2", "shift": "night"}
    assert properties(provider, name)["nodeConfig"] == {"labels": both, "maxPods": 33}


def test_new_join_command_is_shown_once_and_invalidates_previous_url(provider: Provider, open_page: Opened) -> None:
    name = "oven-again"
    made = provider.running.admin.put(name, {"properties": {}}, url=True).json["properties"]["configUrl"]
    page = open_page()
    sign_in(page, provider, address(name, "/token"))
    assert "stops working" in text_of(page)
    judge_on_every_screen(page, "token")
    press(page, "Create command")
    page.get_by_text("aks-flex-node agent --config-url").wait_for()
    command = page.get_by_text("aks-flex-node agent --config-url").inner_text()
    url = command.split("'")[1]
    assert provider.running.admin.fetch(made).status == 404
    assert provider.running.admin.fetch(url).status == 200
    assert url not in page.url
    secret = url.partition("#")[0].rpartition("/")[2]
    page.reload()
    assert secret not in page.content()
    assert secret not in provider.running.log


def test_resubmitted_token_form_makes_only_one_join_command(provider: Provider, open_page: Opened) -> None:
    provider.fleet.never_joined("oven-twice")
    one = open_page()
    sign_in(one, provider, address("oven-twice", "/token"))
    two = one.context.new_page()
    two.goto(provider.url + address("oven-twice", "/token"))
    press(one, "Create command")
    one.get_by_text("aks-flex-node agent --config-url").wait_for()
    version = properties(provider, "oven-twice")["configVersion"]
    open_page.expect("status of 409")
    press(two, "Create command")
    assert "No command was created" in two.get_by_role("alert").inner_text()
    assert properties(provider, "oven-twice")["configVersion"] == version


def test_delete_requires_node_name_and_shows_deleted_page(provider: Provider, open_page: Opened) -> None:
    name = "press-leaving"
    provider.fleet.ready(name)
    page = open_page()
    sign_in(page, provider, address(name, "/delete"))
    assert "evicted" in text_of(page)
    open_page.expect("status of 400")
    page.get_by_label("enter the node name").fill("press-1")
    press(page, f"Delete {name}")
    assert "does not match this node" in page.get_by_role("alert").inner_text()
    judge_on_every_screen(page, "delete-wrong-name")
    page.get_by_label("enter the node name").fill(name)
    press(page, f"Delete {name}")
    page.wait_for_url(f"**{address(name)}")
    assert "The machine is unbootstrapped automatically" in text_of(page)
    judge_on_every_screen(page, "deleted")
    assert provider.running.admin.get(name).status == 404


def test_delete_is_refused_when_node_changed_meanwhile(provider: Provider, open_page: Opened) -> None:
    name = "press-kept"
    provider.fleet.ready(name)
    page = open_page()
    sign_in(page, provider, address(name, "/delete"))
    provider.running.admin.put(name, principal(client_of(name), secret=None, nodeConfig={"maxPods": 9}))
    open_page.expect("status of 409")
    page.get_by_label("enter the node name").fill(name)
    press(page, f"Delete {name}")
    assert "The node was not deleted" in page.get_by_role("alert").inner_text()
    assert provider.running.admin.get(name).status == 200


def test_key_is_revoked_after_confirmation(provider: Provider, open_page: Opened) -> None:
    admin, name, page = provider.running.admin, "oven-key", open_page()
    url = admin.put(name, {"properties": {"continuousMonitoring": True}}, url=True).properties["configUrl"]
    key, path = HeldKey(), url.partition("#")[0].removeprefix(admin.connection.url)
    assert admin.connection.ask("GET", path, {KEY_HEADER: key.url_proof(url)}).status == 200
    sign_in(page, provider, address(name))
    assert fingerprint(key.thumbprint) in text_of(page)

    follow_link(page, "Revoke key")
    assert "stays in the cluster" in text_of(page)
    press(page, "Revoke key")

    text = text_of(page)
    assert f"{fingerprint(key.thumbprint)} (revoked)" in text
    assert page.get_by_role("link", name="Revoke key").count() == 0
    assert admin.get(name).properties["status"]["nodeKey"]["state"] == "Revoked"
    admin.delete(name)


def test_reader_post_to_edit_token_and_delete_is_refused(entra_provider: EntraProvider, open_page: Opened) -> None:
    page = open_page()
    sign_in_by_entra(page, entra_provider, entra_provider.reader, address("press-1"))
    etag = entra_provider.running.admin.get("press-1").json["etag"]
    for below in ("/edit", "/token", "/delete", "/revoke-key"):
        answer = post(
            page, entra_provider, address("press-1", below), etag=etag, name="press-1", **{"nodeConfig-labels": "a=b"}
        )
        assert answer.status == 403
        assert "Access denied" in answer.text()
    found = entra_provider.running.admin.get("press-1").json
    assert found["etag"] == etag
    events = entra_provider.running.admin.audit("press-1").json["value"]
    assert {each["what"] for each in events if each["outcome"] == "denied"} >= {"write", "delete", "regenerateToken"}


def test_post_with_wrong_csrf_token_is_refused(provider: Provider, open_page: Opened) -> None:
    page = open_page()
    sign_in(page, provider, address("press-5"))
    etag = provider.running.admin.get("press-5").json["etag"]
    for below in ("/edit", "/token", "/delete", "/revoke-key"):
        assert post(page, provider, address("press-5", below), csrf="x", etag=etag, name="press-5").status == 403
    assert provider.running.admin.get("press-5").json["etag"] == etag
    assert str(PLANT) in provider.running.admin.get("press-5").json["id"]
