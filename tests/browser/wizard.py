"""Fills in the steps of the form that creates a node."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import uuid4

from tests.browser.navigation import follow, press, sign_in

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from tests.browser.providers import Provider

CLIENT = "6dae42f8-4368-4678-94ff-3960e28e3630"
CANARY = "canary-Qw97-never-to-be-seen"


def begin(page: Page, provider: Provider, name: str) -> None:
    """Completes the first step."""
    sign_in(page, provider, "/ui/create")
    page.get_by_label("Node name").fill(name)
    go_on(page)


def go_on(page: Page) -> None:
    follow(page, page.get_by_role("button", name="Next", exact=True))


def create(page: Page) -> None:
    press(page, "Create node")


def command_on(page: Page) -> str:
    return page.locator(".command code").inner_text()


def create_with_token(page: Page, provider: Provider, name: str) -> None:
    """Creates a node with only a name."""
    begin(page, provider, name)
    for _ in range(3):
        go_on(page)
    create(page)
    page.wait_for_url("**/joining")


def create_with_principal(page: Page, provider: Provider, name: str) -> None:
    begin(page, provider, name)
    choose_principal(page)
    for _ in range(3):
        go_on(page)
    page.get_by_label("Client secret of the service principal").fill(CANARY)
    create(page)
    page.wait_for_url("**/joining")


def choose_principal(page: Page) -> None:
    page.get_by_label("Service principal", exact=True).check()
    page.get_by_label("Application (client) ID").fill(str(uuid4()))
