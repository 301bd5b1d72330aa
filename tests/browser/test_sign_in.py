"""Tests of sign-in with the admin key and Entra ID, and of attacks on sessions."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest

from aks_flex_rp.auth.admin_key import generate_key
from tests.browser.accessibility import judge_on_every_screen
from tests.browser.fleet_data import node_page
from tests.browser.navigation import (
    SESSION,
    follow_link,
    give_key,
    give_password,
    press,
    session_of,
    sign_in,
    sign_in_by_entra,
    sign_out,
    text_of,
    to_entra,
)
from tests.browser.providers import PASSWORD, running_pages
from tests.browser.viewports import WIDE

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.sync_api import Page

    from aks_flex_lab.pki import CertificateAuthority, CertificatePair
    from tests.browser.providers import EntraProvider, Provider
    from tests.browser.viewports import Opened

STILL = "/ui/audit"  # a page without refresh, which does not detect the end of a session


def is_signed_out(page: Page, provider: Provider) -> bool:
    page.goto(f"{provider.url}/")
    return page.url == f"{provider.url}/ui/sign-in"


def test_sign_in_page_is_accessible_on_every_screen(provider: Provider, open_page: Opened) -> None:
    page = open_page()
    page.goto(f"{provider.url}/")
    judge_on_every_screen(page, "sign-in")
    open_page.expect("status of 403")
    give_key(page, "wrong")
    judge_on_every_screen(page, "sign-in-wrong-key")


def test_sign_in_page_with_entra_is_accessible_on_every_screen(
    entra_provider: EntraProvider, open_page: Opened
) -> None:
    page = open_page()
    page.goto(f"{entra_provider.url}/")
    judge_on_every_screen(page, "sign-in-entra")


@pytest.mark.parametrize("scripts", [True, False])
def test_admin_key_sign_in_opens_requested_page(provider: Provider, open_page: Opened, scripts: bool) -> None:
    page = open_page(WIDE, java_script_enabled=scripts)
    page.goto(f"{provider.url}/?search=press&sort=seen")
    give_key(page, f"  {provider.key}\n")
    page.wait_for_url(f"{provider.url}/?search=press&sort=seen")
    assert page.get_by_role("link", name="press-1").is_visible()


def test_admin_key_is_not_in_page_storage_cookies_urls_or_log(provider: Provider, open_page: Opened) -> None:
    page = open_page()
    addresses: list[str] = []
    page.on("request", lambda request: addresses.append(request.url))
    page.goto(f"{provider.url}/")
    assert page.get_by_label("Admin key").get_attribute("type") == "password"
    give_key(page, provider.key)
    page.wait_for_url(f"{provider.url}/")
    kept = page.evaluate("[JSON.stringify(localStorage), JSON.stringify(sessionStorage), document.cookie].join()")
    seen = [page.content(), kept, *addresses, *(str(each) for each in page.context.cookies())]
    assert not [each for each in seen if provider.key in each]
    assert provider.key not in provider.running.log


def test_wrong_admin_key_is_reported_and_creates_no_session(provider: Provider, open_page: Opened) -> None:
    page = open_page()
    page.goto(f"{provider.url}/?search=press")
    open_page.expect("status of 403")
    give_key(page, "aksflex_admin_" + "x" * 43)
    assert "admin key is incorrect" in page.get_by_role("alert").inner_text()
    assert not session_of(page)
    give_key(page, provider.key)
    page.wait_for_url(f"{provider.url}/?search=press")


def test_session_cookie_is_http_only_secure_and_same_site(provider: Provider, open_page: Opened) -> None:
    page = open_page()
    sign_in(page, provider)
    [cookie] = [each for each in page.context.cookies() if each["name"] == SESSION]
    assert (cookie["httpOnly"], cookie["secure"], cookie["sameSite"]) == (True, True, "Lax")
    assert (cookie["path"], cookie["domain"]) == ("/", "127.0.0.1")
    assert 0 < cookie["expires"] - time.time() <= 8 * 3600 + 1
    assert page.evaluate("document.cookie") == ""


def test_sign_in_replaces_planted_session_cookie(provider: Provider, open_page: Opened) -> None:
    """Session fixation: an attacker has set a session cookie in the browser beforehand."""
    other = open_page()
    sign_in(other, provider, STILL)
    planted = session_of(other)
    for value in (planted, "x" * 43):
        page = open_page()
        page.context.add_cookies(
            [{"name": SESSION, "value": value, "url": provider.url, "secure": True, "httpOnly": True}]
        )
        sign_in(page, provider)
        assert session_of(page) not in {planted, "x" * 43, ""}
    assert is_signed_out(other, provider)


def test_sign_out_ends_session_in_all_its_copies(provider: Provider, open_page: Opened) -> None:
    page, copy, other = open_page(), open_page(), open_page()
    sign_in(page, provider, f"{node_page('press-1')}/edit")
    assert page.get_by_role("link", name="press-1").is_visible()
    sign_in(other, provider)
    copy.context.add_cookies([{"name": SESSION, "value": session_of(page), "url": provider.url, "secure": True}])
    copy.goto(f"{provider.url}{STILL}")
    assert copy.url == f"{provider.url}{STILL}"
    sign_out(page)
    assert not session_of(page)
    assert is_signed_out(copy, provider)
    assert not is_signed_out(other, provider)
    page.go_back()
    assert not page.get_by_role("link", name="press-1").is_visible()


@pytest.mark.parametrize(
    "elsewhere",
    [
        "https://evil.example/",
        "//evil.example/",
        "/\\evil.example/",
        "/\t/evil.example",
        "/ui//evil.example",
        "javascript:alert(1)",
        "/ui/../../evil",
        "/subscriptions",
        "evil",
    ],
)
def test_sign_in_does_not_redirect_to_other_site(provider: Provider, open_page: Opened, elsewhere: str) -> None:
    page = open_page()
    page.route("**/*evil*/**", lambda route: route.abort())
    open_page.expect("status of 404")
    page.goto(f"{provider.url}/ui/sign-in?next={quote(elsewhere, safe='')}")
    give_key(page, provider.key)
    page.get_by_role("button", name="Sign out").wait_for()
    assert page.url == f"{provider.url}/"


def test_new_admin_key_ends_existing_sessions(
    authority: CertificateAuthority, certificate: CertificatePair, open_page: Opened, tmp_path: Path
) -> None:
    with running_pages(authority, certificate, tmp_path) as provider:
        page = open_page()
        sign_in(page, provider, STILL)
        provider.running.service.settings.admin_key_file.write_bytes(generate_key() + b"\n")
        assert is_signed_out(page, provider)
        sign_in(page, provider, STILL)


def test_cross_site_form_can_neither_sign_in_nor_sign_out(provider: Provider, open_page: Opened) -> None:
    page = open_page()
    open_page.expect("status of 403")
    submit_cross_site_form(page, f"{provider.url}/ui/sign-in/key", key=provider.key, token="x", next="/")
    assert not session_of(page)
    sign_in(page, provider)
    submit_cross_site_form(page, f"{provider.url}/ui/sign-out", csrf="x")
    assert not is_signed_out(page, provider)


def test_entra_sign_in_opens_requested_page_and_signs_out(entra_provider: EntraProvider, open_page: Opened) -> None:
    page = open_page()
    page.goto(f"{entra_provider.url}/?search=press")
    to_entra(page)
    give_password(page, entra_provider.owner)
    page.wait_for_url(f"{entra_provider.url}/?search=press")
    assert page.get_by_text(entra_provider.owner.name).is_visible()
    assert page.get_by_role("link", name="press-1").is_visible()
    page.goto(f"{entra_provider.url}{STILL}")
    sign_out(page)
    assert is_signed_out(page, entra_provider)


def test_reader_sees_no_changing_controls(entra_provider: EntraProvider, open_page: Opened) -> None:
    reader, owner = open_page(), open_page()
    sign_in_by_entra(reader, entra_provider, entra_provider.reader)
    sign_in_by_entra(owner, entra_provider, entra_provider.owner)
    assert reader.get_by_role("link", name="press-1").is_visible()
    assert changing(owner)
    assert not changing(reader)
    reader.goto(f"{entra_provider.url}{node_page('press-1')}")
    assert reader.get_by_role("heading", name="press-1").is_visible()
    assert not changing(reader)


def test_user_without_role_sees_no_nodes_and_a_role_hint(entra_provider: EntraProvider, open_page: Opened) -> None:
    page = open_page()
    sign_in_by_entra(page, entra_provider, entra_provider.stranger)
    assert "press-1" not in page.content()
    assert "ask the cluster owner for the Reader role" in text_of(page)


def test_cancelled_entra_sign_in_is_reported_and_can_be_retried(
    entra_provider: EntraProvider, open_page: Opened
) -> None:
    page = open_page()
    page.goto(f"{entra_provider.url}/")
    to_entra(page)
    open_page.expect("status of 401")
    press(page, "Cancel")
    assert "declined" in page.get_by_role("alert").inner_text()
    assert not session_of(page)
    follow_link(page, "Sign in")
    to_entra(page)
    give_password(page, entra_provider.owner)
    page.wait_for_url(f"{entra_provider.url}/")


def test_entra_callback_of_another_browser_is_refused(entra_provider: EntraProvider, open_page: Opened) -> None:
    """Login CSRF: an attacker stops before the last redirect and sends its URL to another user."""
    page, other = open_page(), open_page()
    link = last_step(other, entra_provider)
    open_page.expect("status of 401")
    page.goto(link)
    assert "No sign-in is in progress" in page.get_by_role("alert").inner_text()
    assert not session_of(page)
    begun(page, entra_provider)
    page.goto(link)
    assert "does not belong to the sign-in" in page.get_by_role("alert").inner_text()
    assert not session_of(page)


def test_entra_callback_can_be_used_only_once(entra_provider: EntraProvider, open_page: Opened) -> None:
    page = open_page()
    link = last_step(page, entra_provider)
    page.goto(link)
    page.wait_for_url(f"{entra_provider.url}/")
    page.goto(f"{entra_provider.url}{STILL}")
    sign_out(page)
    open_page.expect("status of 401")
    page.goto(link)
    assert page.get_by_role("alert").is_visible()
    assert not session_of(page)


def test_entra_token_with_wrong_nonce_is_refused(entra_provider: EntraProvider, open_page: Opened) -> None:
    page = open_page()
    page.goto(begun(page, entra_provider).replace("&nonce=", "&nonce=0"))
    open_page.expect("status of 401")
    give_password(page, entra_provider.owner)
    assert "does not belong to the sign-in" in page.get_by_role("alert").inner_text()
    assert not session_of(page)


def test_entra_sign_in_keeps_long_target_url(entra_provider: EntraProvider, open_page: Opened) -> None:
    page = open_page()
    sign_in_by_entra(page, entra_provider, entra_provider.owner, f"/?search={'x' * 1800}")


def test_every_page_has_security_headers(provider: Provider, open_page: Opened) -> None:
    page = open_page()
    open_page.expect("status of 404")
    for path in ("/ui/sign-in", "/ui/nothing", "/"):
        answer = page.goto(f"{provider.url}{path}")
        assert answer is not None
        headers = answer.headers
        policy = dict(each.strip().split(" ", 1) for each in headers["content-security-policy"].split(";"))
        assert policy["default-src"] == policy["frame-ancestors"] == policy["base-uri"] == "'none'"
        assert policy["script-src"] == policy["style-src"] == "'self'"
        assert headers["cache-control"] == "no-store"
        assert headers["x-content-type-options"] == "nosniff"


def changing(page: Page) -> list[str]:
    """Returns the links and buttons of a page that change something, except signing out."""
    links = page.locator("a[href*=create], a[href*=edit], a[href*=delete]").all_inner_texts()
    buttons = page.locator("form[method=post] button, form[method=post] input[type=submit]").all_inner_texts()
    return [*links, *(each for each in buttons if each != "Sign out")]


def submit_cross_site_form(page: Page, address: str, **fields: str) -> None:
    """Submits a form from a page of another site, and returns the result."""
    inputs = "".join(f'<input name="{name}" value="{value}">' for name, value in fields.items())
    form = f'<form method="post" action="{address}">{inputs}<button>Win</button></form>'
    page.route("https://elsewhere.example/", lambda route: route.fulfill(body=form, content_type="text/html"))
    page.goto("https://elsewhere.example/")
    press(page, "Win")


def begun(page: Page, provider: EntraProvider) -> str:
    """Returns the URL of Entra ID to which a new sign-in redirects."""
    answer = page.request.get(f"{provider.url}/ui/sign-in/entra", max_redirects=0)
    return answer.headers["location"]


def last_step(page: Page, provider: EntraProvider) -> str:
    """Returns the redirect URL of Entra ID, before the browser has followed it."""
    answer = page.request.post(
        begun(page, provider), form={"username": provider.owner.name, "password": PASSWORD}, max_redirects=0
    )
    return answer.headers["location"]
