"""Tests of the sign-in page of the lab's Entra ID in a browser."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest

from aks_flex_lab.entra.directory import TENANT_ID
from tests.browser.accessibility import judge
from tests.browser.navigation import press
from tests.browser.viewports import WIDE
from tests.service.lab.cloud_harness import running_provider

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Page

    from aks_flex_lab.entra.directory import EntraPrincipal
    from aks_flex_lab.pki import CertificatePair
    from tests.browser.viewports import Opened
    from tests.service.lab.cloud_harness import Cloud


@dataclass(frozen=True)
class Application:
    """An application that receives the redirect of Entra ID and shows its parameters."""

    cloud: Cloud
    itself: EntraPrincipal
    back: str

    def ask(self, page: Page, **more: str) -> None:
        words = {"client_id": self.itself.client_id, "redirect_uri": self.back, "response_type": "code"}
        words |= {"scope": "openid", "state": "s&s", **more}
        page.goto(f"{self.cloud.url}/{TENANT_ID}/oauth2/v2.0/authorize?{urlencode(words)}")

    def heard(self, page: Page) -> dict[str, list[str]]:
        page.wait_for_url(f"{self.back}**")
        told = json.loads(page.locator("body").inner_text())
        return parse_qs(told["body"] or urlsplit(told["path"]).query)


@pytest.fixture(scope="module")
def application(cloud: Cloud, certificate: CertificatePair) -> Iterator[Application]:
    cloud.directory.user("page@flex.internal", "pass word")
    with running_provider(certificate) as url:
        itself = cloud.directory.service_principal("A dashboard", "right", redirect_uris=(f"{url}/back",))
        yield Application(cloud, itself, f"{url}/back")


def sign_in(page: Page, password: str) -> None:
    page.get_by_label("User name").fill("page@flex.internal")
    page.get_by_label("Password").fill(password)
    press(page, "Sign in")


def test_entra_sign_in_page_is_accessible(application: Application, open_page: Opened) -> None:
    page = open_page()
    application.ask(page)
    judge(page, "entra-sign-in")
    sign_in(page, "wrong")
    assert "AADSTS50126" in page.get_by_role("alert").inner_text()
    judge(page, "entra-wrong-password")
    open_page.expect("status of 400")
    application.ask(page, redirect_uri="https://evil.example/")
    judge(page, "entra-refused")


@pytest.mark.parametrize("scripts", [True, False])
@pytest.mark.parametrize("mode", ["query", "form_post"])
def test_entra_sign_in_redirects_with_code(
    application: Application, open_page: Opened, mode: str, scripts: bool
) -> None:
    page = open_page(WIDE, java_script_enabled=scripts)
    application.ask(page, response_mode=mode)
    sign_in(page, "pass word")
    if mode == "form_post" and not scripts:
        press(page, "Continue")
    told = application.heard(page)
    assert told["state"] == ["s&s"]
    assert len(told["code"][0]) > 40


def test_cancelled_entra_sign_in_returns_access_denied(application: Application, open_page: Opened) -> None:
    page = open_page()
    application.ask(page, login_hint="page@flex.internal")
    assert page.get_by_label("User name").input_value() == "page@flex.internal"
    press(page, "Cancel")
    assert application.heard(page)["error"] == ["access_denied"]
