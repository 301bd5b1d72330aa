"""Signs in to the pages with the admin key and with Entra ID, and signs out."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

from tests.browser.providers import PASSWORD

if TYPE_CHECKING:
    from playwright.sync_api import APIResponse, Locator, Page

    from aks_flex_lab.entra.directory import EntraPrincipal
    from tests.browser.providers import EntraProvider, Provider

SESSION = "__Host-aks-flex"


def follow(page: Page, way: Locator) -> None:
    """Clicks a link and waits until the next page is loaded: a click alone does not wait."""
    with page.expect_navigation():
        way.click()


def press(page: Page, name: str) -> None:
    """Presses a button that leads to another page."""
    follow(page, page.get_by_role("button", name=name))


def follow_link(page: Page, name: str) -> None:
    follow(page, page.get_by_role("link", name=name))


def fill_in(page: Page, values: dict[str, str]) -> None:
    """Fills in fields by their labels. A label may be a part, unless a field has exactly this one."""
    for label, value in values.items():
        exact = page.get_by_label(label, exact=True)
        (exact if exact.count() else page.get_by_label(label)).fill(value)


def post(page: Page, provider: Provider, path: str, *, origin: str = "", **form: str) -> APIResponse:
    """Posts a form with the token of the page, or with another one, from the service or from another origin."""
    token = page.locator("input[name=csrf]").first.input_value()
    fields: dict[str, str | float | bool] = {"csrf": token, **form}
    return page.request.post(provider.url + path, form=fields, headers={"Origin": origin or provider.url})


def text_of(page: Page) -> str:
    return page.get_by_role("main").inner_text()


def sign_in(page: Page, provider: Provider, after: str = "/") -> None:
    """Signs in with the admin key and waits for the requested page."""
    page.goto(f"{provider.url}/ui/sign-in?next={quote(after)}")
    give_key(page, provider.key)
    page.wait_for_url(f"{provider.url}{after}")


def give_key(page: Page, key: str) -> None:
    page.get_by_label("Admin key").fill(key)
    follow(page, page.get_by_role("button", name="Sign in", exact=True))


def sign_in_by_entra(page: Page, provider: EntraProvider, who: EntraPrincipal, after: str = "/") -> None:
    page.goto(f"{provider.url}/ui/sign-in?next={quote(after)}")
    to_entra(page)
    give_password(page, who)
    page.wait_for_url(f"{provider.url}{after}")


def to_entra(page: Page) -> None:
    follow_link(page, "Entra ID")


def give_password(page: Page, who: EntraPrincipal) -> None:
    fill_in(page, {"User name": who.name, "Password": PASSWORD})
    press(page, "Sign in")


def sign_out(page: Page) -> None:
    """Signs out from a page that does not refresh: a refresh could detect the end of the session first and reload."""
    assert page.locator("[data-live]").count() == 0
    press(page, "Sign out")
    page.wait_for_url("**/ui/sign-in")


def session_of(page: Page) -> str:
    """Returns the session cookie; empty without a session."""
    return next((str(each["value"]) for each in page.context.cookies() if each["name"] == SESSION), "")
