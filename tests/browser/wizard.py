"""Fills in the form that creates a node."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import uuid4

from tests.browser.navigation import press, sign_in

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from tests.browser.providers import Provider

CLIENT = "6dae42f8-4368-4678-94ff-3960e28e3630"
CANARY = "canary-Qw97-never-to-be-seen"


def begin(page: Page, provider: Provider, name: str) -> None:
    sign_in(page, provider, "/ui/create")
    page.get_by_label("Node name").fill(name)


def preview(page: Page) -> None:
    press(page, "Preview")


def create(page: Page) -> None:
    press(page, "Create node")


def command_on(page: Page) -> str:
    return page.locator(".command code").inner_text()


def create_with_token(page: Page, provider: Provider, name: str) -> None:
    """Creates a node with only a name."""
    begin(page, provider, name)
    create(page)
    page.wait_for_url("**/joining")


def create_with_principal(page: Page, provider: Provider, name: str) -> None:
    begin(page, provider, name)
    choose_principal(page)
    page.get_by_label("Client secret").fill(CANARY)
    create(page)
    page.wait_for_url("**/joining")


def choose_principal(page: Page) -> None:
    page.get_by_label("Service principal", exact=True).check()
    page.get_by_label("Application (client) ID").fill(str(uuid4()))
