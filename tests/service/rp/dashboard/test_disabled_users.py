"""Tests of dashboard sessions of users that Entra ID disables, with the lab's Entra ID and the real service."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import urlencode

import pytest
import urllib3

from aks_flex_rp.dashboard.page_request import SESSION_COOKIE
from aks_flex_rp.dashboard.sessions import CHECK_SECONDS
from tests.browser.providers import PASSWORD, running_with_entra

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from aks_flex_lab.entra.directory import EntraPrincipal
    from aks_flex_lab.pki import CertificateAuthority
    from tests.browser.providers import EntraProvider
    from tests.service.lab.cloud_harness import Cloud

# MSAL recommends form_post, with which the browser would not send the service's cookies.
pytestmark = pytest.mark.filterwarnings("ignore:response_mode='form_post' is recommended")


@pytest.fixture
def entra_provider(authority: CertificateAuthority, cloud: Cloud, tmp_path: Path) -> Iterator[EntraProvider]:
    pair = authority.issue("loopback", "localhost", names=("localhost", "127.0.0.1"))
    with running_with_entra(authority, pair, cloud, tmp_path) as provider:
        yield provider


@dataclass
class BrowserSession:
    """The cookies and requests of a browser, without pages."""

    provider: EntraProvider
    pool: urllib3.PoolManager
    cookies: dict[str, str] = field(default_factory=dict)

    def get(self, url: str, **headers: str) -> urllib3.BaseHTTPResponse:
        sent = {"Cookie": "; ".join(f"{name}={value}" for name, value in self.cookies.items()), **headers}
        response = self.pool.request("GET", url, headers=sent, redirect=False)
        for line in response.headers.getlist("set-cookie"):
            name, _, value = line.partition(";")[0].partition("=")
            self.cookies[name] = value
        return response

    def page(self, path: str, **headers: str) -> urllib3.BaseHTTPResponse:
        return self.get(self.provider.url + path, **headers)

    def sign_in(self, user: EntraPrincipal) -> None:
        entra = self.page("/ui/sign-in/entra").headers["location"]
        form = urlencode({"username": user.object_id, "password": PASSWORD, "answer": "sign-in"})
        headers = {"Content-Type": "application/x-www-form-urlencoded"}
        back = self.pool.request("POST", entra, body=form, headers=headers, redirect=False)
        self.get(back.headers["location"])
        assert self.cookies[SESSION_COOKIE]


@pytest.fixture
def browser(entra_provider: EntraProvider, cloud: Cloud) -> BrowserSession:
    return BrowserSession(entra_provider, urllib3.PoolManager(ca_certs=cloud.ca, retries=False, timeout=30.0))


def advance(entra_provider: EntraProvider, seconds: float) -> None:
    dashboard = entra_provider.running.service.dashboard
    assert dashboard is not None
    dashboard.sessions.clock = lambda: time.time() + seconds


def test_session_of_a_disabled_user_ends_within_15_minutes(
    browser: BrowserSession, entra_provider: EntraProvider, cloud: Cloud
) -> None:
    """Attack: a user that the tenant has disabled goes on with an open session."""
    browser.sign_in(entra_provider.owner)
    assert browser.page("/").status == 200
    cloud.directory.change(entra_provider.owner, enabled=False)
    advance(entra_provider, CHECK_SECONDS)

    refused = browser.page("/")

    assert refused.status == 401
    assert "AADSTS50057" in refused.data.decode()
    assert 'href="/ui/sign-in"' in refused.data.decode()
    again = browser.page("/")
    assert (again.status, again.headers["location"]) == (303, "/ui/sign-in")
    assert "Your session has ended" in browser.page("/ui/sign-in").data.decode()
    [event] = entra_provider.running.call(
        entra_provider.running.store.audit(caller=entra_provider.owner.object_id, limit=1)
    )
    assert (event.outcome, event.what) == ("denied", "signIn")


def test_sign_in_that_cannot_be_checked_is_not_accepted(
    browser: BrowserSession, entra_provider: EntraProvider, cloud: Cloud
) -> None:
    """The client secret of the dashboard expires: no user is signed out for it, and no page is shown."""
    browser.sign_in(entra_provider.owner)
    [application] = [each for each in cloud.directory.all() if f"{entra_provider.url}/" in each.redirect_uris]
    cloud.directory.change(application, secret_expires=1.0)
    advance(entra_provider, CHECK_SECONDS)
    refused = browser.page("/")
    assert refused.status == 503
    assert "AADSTS" in refused.data.decode()
    cloud.directory.change(application, secret_expires=0.0)
    assert browser.page("/").status == 200
