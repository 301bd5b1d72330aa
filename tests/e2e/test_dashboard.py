"""The life of a node in the dashboard: create, watch the join, change, break, delete."""

from __future__ import annotations

import re
import secrets
import ssl
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import expect

from aks_flex_lab import node_agent
from tests.browser.accessibility import judge
from tests.browser.browsers import running_browser
from tests.browser.navigation import follow, follow_link, give_key, press
from tests.browser.viewports import Opened
from tests.browser.wizard import create
from tests.wait import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from playwright.sync_api import Page

    from aks_flex_lab.lab import Lab
    from aks_flex_lab.machines.machine import EdgeMachine

NAME = "browsed-1"
LONG = 120_000  # milliseconds, for operations of a machine


@pytest.fixture
def open_page(lab: Lab, tmp_path: Path) -> Iterator[Opened]:
    where = urlsplit(lab.provider.dashboard)
    served = tmp_path / "served.crt"
    served.write_text(ssl.get_server_certificate((str(where.hostname), int(where.port or 443))))
    with running_browser(served, lab.provider.authority) as browser:
        opened = Opened(browser)
        yield opened
        opened.close()


def describe(page: Page, lab: Lab) -> None:
    """Completes the form that creates a node, up to the join command."""
    secret = secrets.token_urlsafe(24)
    identity = lab.azure.directory.service_principal(NAME, secret)
    follow(page, page.get_by_role("link", name="Create node").first)
    page.get_by_label("Node name").fill(NAME)
    page.get_by_label("Service principal", exact=True).check()
    page.get_by_label("Application (client) ID").fill(identity.client_id)
    page.get_by_label("Client secret").fill(secret)
    page.get_by_label("Managed node").select_option("yes")
    page.get_by_label("Drift policy").select_option("log")
    page.get_by_label("Labels", exact=True).fill("site=factory")
    create(page)


def label_of(lab: Lab, name: str) -> str | None:
    found: dict[str, str] = lab.cluster.get("node", NAME)["metadata"]["labels"]
    return found.get(name)


@pytest.mark.promise
def test_node_is_created_edited_and_deleted_in_dashboard(
    lab: Lab, add_machine: Callable[..., EdgeMachine], open_page: Opened
) -> None:
    machine = add_machine(NAME)
    node_agent.install(machine)
    page = open_page()
    page.goto(lab.provider.dashboard)
    give_key(page, lab.provider.key_file.read_text().strip())
    describe(page, lab)

    line = page.locator(".command code").inner_text()
    machine.run("sh", "-c", line, timeout=400)
    expect(page.get_by_role("status").filter(has_text=f"{NAME} is Ready.")).to_be_visible(timeout=LONG)
    judge(page, "e2e-joined")

    follow(page, page.get_by_role("link", name="Show node").first)
    expect(page.locator(".state").first).to_have_text("Ready", timeout=LONG)
    judge(page, "e2e-node")
    follow_link(page, "Edit")
    labels = page.get_by_label("Labels", exact=True)
    labels.fill(re.sub("factory", "hall-2", labels.input_value()))
    follow(page, page.get_by_role("button", name="Save", exact=True))
    until(lambda: label_of(lab, "site") == "hall-2", "the Node has the label")

    machine.run("sh", "-c", "echo '# was here' >>/etc/containerd/config.toml")
    changed = page.get_by_role("row").filter(has_text="Drifted")
    expect(changed).to_contain_text("/etc/containerd/config.toml", timeout=LONG)
    follow_link(page, "Edit")
    page.get_by_label("Drift policy").select_option("repair")
    follow(page, page.get_by_role("button", name="Save", exact=True))
    expect(changed).to_contain_text("False", timeout=LONG)

    follow_link(page, "Delete")
    page.get_by_label(re.compile("enter the node name")).fill(NAME)
    press(page, f"Delete {NAME}")
    expect(page.get_by_text(re.compile("deleted", re.IGNORECASE)).first).to_be_visible()
    gone = ("test", "-e", "/var/lib/aks-flex-node")
    until(lambda: not machine.run(*gone, check=False).ok, "the machine has left")
