"""Tests of the page after a creation: the join command is shown once, and the progress of the join is live."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

from aks_flex_node.timestamps import format_utc
from tests.browser.accessibility import judge_on_every_screen
from tests.browser.navigation import sign_in, text_of
from tests.browser.wizard import command_on, create_with_principal, create_with_token
from tests.node_key_client import HeldKey
from tests.service.rp.api.fake_clusters import PLANT

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from tests.browser.providers import Provider
    from tests.browser.viewports import Opened

READY = {"type": "Ready", "status": "True", "reason": "KubeletReady", "kubeletVersion": "v1.34.4"}


def wait_for(page: Page, name: str, state: str) -> None:
    """Waits until the page shows this state of a step."""
    page.locator(f".step.{state} .step-name", has_text=name).wait_for()


def test_joining_page_shows_progress_until_node_is_ready(provider: Provider, open_page: Opened) -> None:
    page, name = open_page(), "follow-1"
    create_with_token(page, provider, name)
    found = re.fullmatch(r"echo '(https://[^']+)' \| aks-flex-node agent --config-url-file -", command_on(page))
    assert found
    joins, clusters = provider.running.service.join_tracker, provider.running.clusters
    [secret] = [secret for secret, (node, _) in clusters.tokens.items() if node == name]
    wait_for(page, "Created", "now")
    assert provider.running.admin.fetch(found[1], key=HeldKey()).status == 200
    wait_for(page, "Configuration fetched", "now")
    assert provider.running.call(joins.on_token_csr(PLANT.key, name, secret, "csr-1"))
    wait_for(page, "Join requested", "now")
    provider.running.call(joins.on_token_certificate(PLANT.key, name, secret, "csr-1"))
    heard = {**READY, "lastHeartbeatTime": format_utc(time.time() + 5)}
    provider.running.call(joins.on_node_observed(PLANT.key, name, heard))
    wait_for(page, "Joined", "now")
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": format_utc(time.time())}
    assert provider.running.admin.report(name, {"agentVersion": "1.0.0", "conditions": [ready]}).status == 200
    wait_for(page, "Ready", "done")
    assert page.get_by_text(f"{name} is Ready.").is_visible()
    assert command_on(page) == found[0]


def test_joining_page_shows_failure_cause_and_remedy(provider: Provider, open_page: Opened) -> None:
    page = open_page()
    create_with_principal(page, provider, "follow-2")
    cause = "The API server did not answer within 30 s."
    told = {"agentVersion": "1.0.0", "joinState": "Failed", "joinFailure": cause}
    assert provider.running.admin.report("follow-2", told).status == 200
    wait_for(page, "Join requested", "failed")
    assert cause in page.locator(".step.failed").inner_text()
    assert "run aks-flex-node agent without options on the machine" in text_of(page)
    judge_on_every_screen(page, "created-failed")


def test_join_command_is_shown_only_once(provider: Provider, open_page: Opened) -> None:
    page, other = open_page(permissions=["clipboard-read", "clipboard-write"]), open_page()
    create_with_token(page, provider, "once-1")
    page.clock.install()
    page.clock.pause_at(time.time() + 60)  # keeps the button's text until it is read
    page.get_by_role("button", name="Copy").click()
    page.get_by_role("button", name="Copied").wait_for()
    assert page.evaluate("navigator.clipboard.readText()") == command_on(page)
    url = command_on(page).split("'")[1]
    secret = url.partition("#")[0].rpartition("/")[2]
    assert secret not in page.url
    part = page.request.get(page.url, headers={"X-Live": "something else"})
    assert part.status == 200
    assert "Configuration fetched" in part.text()
    assert secret not in part.text()
    sign_in(other, provider, page.url.removeprefix(provider.url))
    assert secret not in other.content()
    page.reload()
    assert secret not in page.content()
    assert "shown once" in text_of(page)
    assert page.get_by_role("link", name="create a new join command").get_attribute("href")
    assert secret not in provider.running.log
    assert provider.running.admin.fetch(url, key=HeldKey()).status == 200
