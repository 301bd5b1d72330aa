"""Tests of the pages of pools, and of pools on the pages of nodes, the fleet and the wizard."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any

import pytest

from tests.browser.accessibility import judge_on_every_screen
from tests.browser.navigation import follow, press, sign_in, sign_in_by_entra, text_of
from tests.browser.test_node_page import address
from tests.browser.wizard import create, preview
from tests.service.rp.api.fake_clusters import PLANT

if TYPE_CHECKING:
    from tests.browser.providers import EntraProvider, Provider
    from tests.browser.viewports import Opened

numbers = count(1)
HOSTILE = "<script>alert(1)</script>"


def pool_address(pool: str) -> str:
    return f"/ui/pools/{PLANT.subscription}/{PLANT.group}/{PLANT.name}/{pool}"


def put(provider: Provider, pool: str, template: Any, description: str = "Pumps") -> None:
    body = {"properties": {"template": template, "description": description}}
    assert provider.running.admin.pool("PUT", pool, body=body).status in {200, 201}


@pytest.fixture
def pool() -> str:
    return f"line{next(numbers)}"


def fill(provider: Provider, pool: str, nodes: int = 2) -> None:
    """Creates a pool whose nodes are on an earlier revision."""
    put(provider, pool, {"nodeConfig": {"maxPods": 50, "labels": {"site": "north"}}})
    for number in range(1, nodes + 1):
        body = {"properties": {"poolName": pool, "nodeConfig": {"labels": {"rack": str(number)}}}}
        assert provider.running.admin.put(f"{pool}-{number}", body).status == 201
    taint = {"key": "edge", "value": "true", "effect": "NoSchedule"}
    put(provider, pool, {"nodeConfig": {"maxPods": 60, "labels": {"site": "north"}, "taints": [taint]}}, HOSTILE)


def test_pool_is_found_and_applied_to_one_node_then_to_all(provider: Provider, open_page: Opened, pool: str) -> None:
    fill(provider, pool)
    page = open_page()
    sign_in(page, provider, "/ui/pools")
    judge_on_every_screen(page, "pools")
    assert HOSTILE in page.get_by_role("row", name=pool).inner_text()
    follow(page, page.get_by_role("link", name=pool, exact=True))
    judge_on_every_screen(page, "pool")
    assert "2 on another revision" in text_of(page)
    newest = page.get_by_role("region", name="Changes of revision 2").inner_text()
    assert "nodeConfig.maxPods" in newest
    assert "nodeConfig.taints['edge:NoSchedule']" in newest

    press(page, f"Apply to {pool}-1")
    assert "1 node changed, 0 already on this revision, 0 not changed." in text_of(page)
    press(page, "Apply revision 2 to 1 node")
    assert "1 node changed, 1 already on this revision, 0 not changed." in text_of(page)
    assert page.get_by_role("button", name="Apply").count() == 0
    shown = provider.running.admin.get(f"{pool}-2").json["properties"]
    assert (shown["poolRevision"], shown["config"]["node"]["maxPods"]) == (2, 60)


def test_refused_node_is_named_with_the_reason(provider: Provider, open_page: Opened, pool: str) -> None:
    put(provider, pool, {"versions": {"kubernetes": "1.34.4"}})
    provider.running.admin.put(f"{pool}-1", {"properties": {"poolName": pool}})
    put(provider, pool, {"versions": {"kubernetes": "1.33.1"}})
    page = open_page()
    sign_in(page, provider, pool_address(pool))
    press(page, "Apply revision 2 to 1 node")
    assert f"{pool}-1: '1.33.1' is older than the current version 1.34.4." in text_of(page)
    judge_on_every_screen(page, "pool-refused")


def test_node_page_shows_pool_and_origins(provider: Provider, open_page: Opened, pool: str) -> None:
    fill(provider, pool, 1)
    page = open_page()
    sign_in(page, provider, address(f"{pool}-1"))
    assert f"{pool}, revision 1" in text_of(page)
    page.get_by_text("Effective settings and their origins").click()
    rows = page.get_by_role("region", name="Effective settings")
    assert rows.get_by_role("row", name="nodeConfig.labels.site").inner_text().split()[1:] == ["north", "pool"]
    assert rows.get_by_role("row", name="nodeConfig.labels.rack").inner_text().split()[1:] == ["1", "node"]
    assert rows.get_by_role("row", name="versions.kubernetes").inner_text().split()[-1] == "default"
    judge_on_every_screen(page, "node-of-pool")


def test_fleet_page_filters_by_pool(provider: Provider, open_page: Opened, pool: str) -> None:
    fill(provider, pool)
    page = open_page()
    sign_in(page, provider, f"/?pool={pool}")
    names = [each.inner_text() for each in page.locator("table.nodes tbody th").all()]
    assert names == [f"{pool}-1", f"{pool}-2"]
    assert page.get_by_role("textbox", name="Pool").input_value() == pool
    judge_on_every_screen(page, "fleet-of-pool")


def test_form_creates_a_node_in_a_pool(provider: Provider, open_page: Opened, pool: str) -> None:
    fill(provider, pool, 0)
    page = open_page()
    sign_in(page, provider, "/ui/create")
    page.get_by_label("Node name").fill(f"{pool}-new")
    open_page.expect("400")
    page.get_by_role("textbox", name="Pool").fill("nowhere")
    preview(page)
    assert "has no pool 'nowhere'" in text_of(page)
    page.get_by_role("textbox", name="Pool").fill(pool)
    preview(page)
    assert '"maxPods": 60' in page.get_by_label("Settings with the pool").inner_text()
    judge_on_every_screen(page, "create-in-pool")
    create(page)
    page.wait_for_url("**/joining")
    made = provider.running.admin.get(f"{pool}-new").json["properties"]
    assert (made["poolName"], made["poolRevision"], made["config"]["node"]["maxPods"]) == (pool, 2, 60)
    assert "azureAuth" not in made


def test_reader_sees_a_pool_but_cannot_apply(entra_provider: EntraProvider, open_page: Opened, pool: str) -> None:
    fill(entra_provider, pool)
    page = open_page()
    sign_in_by_entra(page, entra_provider, entra_provider.reader, pool_address(pool))
    assert "2 on another revision" in text_of(page)
    assert page.get_by_role("button", name="Apply").count() == 0
