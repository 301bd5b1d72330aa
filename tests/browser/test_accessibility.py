"""Tests of the accessibility checks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import Error

from aks_flex_lab.pki import CertificateAuthority
from tests.browser.accessibility import axe, overflow
from tests.browser.viewports import Screen
from tests.service.lab.cloud_harness import running_provider

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.sync_api import Page, Route

    from tests.browser.viewports import Opened

PAGE = '<!doctype html><html lang="en"><title>t</title><body><main><h1>h</h1>{}</main></body></html>'
STRICT = "default-src 'none'; script-src 'self'; style-src 'unsafe-inline'; connect-src 'self'"


def shown(page: Page, body: str, policy: str = "") -> None:
    """Loads a page with this body, as a server would send it."""

    def answer(route: Route) -> None:
        headers = {"Content-Type": "text/html"} | ({"Content-Security-Policy": policy} if policy else {})
        route.fulfill(body=PAGE.format(body), headers=headers)

    page.route("https://page.example/", answer)
    page.goto("https://page.example/")


def test_plain_page_has_no_accessibility_or_overflow_findings(open_page: Opened) -> None:
    page = open_page(Screen(360))
    shown(page, "<p>some words</p>", STRICT)
    assert axe(page) == []
    assert overflow(page) == []


def test_axe_runs_under_csp_that_forbids_scripts(open_page: Opened) -> None:
    page = open_page()
    shown(page, '<img src="data:," ><input><p style="color:#ccc;background:#fff">pale</p>', "default-src 'none'")
    open_page.expect("Content Security Policy")
    found = " ".join(axe(page))
    assert "image-alt" in found
    assert "label (critical)" in found


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("<p style='width:900px'>wide</p>", "scrolls sideways"),
        ("<p style='white-space:nowrap'>{}</p>".format("word " * 60), "sticks out of the screen"),
        ("<p style='width:5em'>unbreakable-{}</p>".format("x" * 30), "sticks out of its box"),
        ("<p style='width:5em;overflow:hidden;white-space:nowrap'>more than fits here</p>", "is cut off"),
        ("<p style='height:1em;width:5em;overflow:hidden'>more lines than fit here</p>", "is cut off"),
        ("<p style='width:5em'><b>in-an-inline-{}</b></p>".format("x" * 30), "sticks out of its box"),
    ],
)
def test_overflowing_text_is_found(open_page: Opened, body: str, words: str) -> None:
    page = open_page(Screen(360))
    shown(page, body)
    assert words in " ".join(overflow(page))


@pytest.mark.parametrize(
    "body",
    [
        "<div style='width:9em;overflow:auto'><p style='white-space:nowrap'>one may scroll to all of this</p></div>",
        "<p title='all of it' style='width:3em;overflow:hidden;text-overflow:ellipsis'>all-of-it-in-one-word</p>",
        "<p style='position:absolute;width:1px;height:1px;overflow:hidden;white-space:nowrap'>only to be heard</p>",
        "<a href='#x' style='position:absolute;left:-99em;white-space:nowrap'>to the content</a>",
        "<p style='width:5em;display:none'>unbreakable-{}</p>".format("x" * 30),
    ],
)
def test_deliberately_truncated_text_is_accepted(open_page: Opened, body: str) -> None:
    page = open_page(Screen(360))
    shown(page, body)
    assert overflow(page) == []


@pytest.mark.parametrize(
    ("body", "trouble"),
    [
        ("<script>document.title = 'x'</script>", "Content Security Policy"),
        ("<p onclick='alert(1)'>p</p>", "Content Security Policy"),
        ("<script src='/none.js'></script>", "none.js"),
        ("<link rel=stylesheet href='https://evil.example/x.css'>", "Content Security Policy"),
    ],
)
def test_page_error_is_recorded(open_page: Opened, body: str, trouble: str) -> None:
    page = open_page()
    page.route("**/none.js", lambda route: route.fulfill(status=404, body=""))
    shown(page, body, STRICT)
    open_page.expect(".")
    assert any(trouble in each for each in open_page.troubles), open_page.troubles


@pytest.mark.parametrize(
    ("script", "trouble"),
    [("throw new Error('broken')", "script failed: broken"), ("alert('boo')", "dialog: boo")],
)
def test_script_error_and_dialog_are_recorded_and_do_not_block(open_page: Opened, script: str, trouble: str) -> None:
    shown(open_page(), f"<script>{script}</script>")
    open_page.expect(trouble)
    assert open_page.troubles == [trouble]


def test_unexpected_page_error_fails_test(open_page: Opened) -> None:
    page = open_page()
    shown(page, "<script>console.error('broken')</script>")
    with pytest.raises(AssertionError, match="broken"):
        open_page.close()
    open_page.expect("broken")


def test_server_with_untrusted_certificate_is_refused(open_page: Opened, tmp_path: Path) -> None:
    stranger = CertificateAuthority(tmp_path)
    stranger.ensure()
    page = open_page()
    open_page.expect("ERR_CERT_AUTHORITY_INVALID")
    with (
        running_provider(stranger.issue("localhost", "localhost", names=("localhost",))) as url,
        pytest.raises(Error, match="ERR_CERT_AUTHORITY_INVALID"),
    ):
        page.goto(url)
