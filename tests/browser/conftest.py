"""Fixtures: a real browser, and pages that fail a test when an error occurs in them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from aks_flex_lab.pki import CertificateAuthority
from tests.browser.accessibility import judge_on_every_screen
from tests.browser.browsers import running_browser
from tests.browser.providers import running_pages, running_with_entra
from tests.browser.viewports import Opened
from tests.service.lab.cloud_harness import running_cloud

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser

    from aks_flex_lab.pki import CertificatePair
    from tests.browser.providers import EntraProvider, Provider
    from tests.service.lab.cloud_harness import Cloud


def pytest_itemcollected(item: pytest.Item) -> None:
    """Marks the tests that judge a page on every screen: `make test` runs them on one, `make test-full` on all."""
    if isinstance(item, pytest.Function) and judge_on_every_screen.__name__ in item.function.__code__.co_names:
        item.add_marker(pytest.mark.every_screen)
    # MSAL recommends form_post, with which the browser would not send the service's cookies.
    item.add_marker(pytest.mark.filterwarnings("ignore:response_mode='form_post' is recommended"))


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> CertificateAuthority:
    authority = CertificateAuthority(tmp_path_factory.mktemp("pki"))
    authority.ensure()
    return authority


@pytest.fixture(scope="session")
def certificate(authority: CertificateAuthority) -> CertificatePair:
    """Returns the certificate of all servers that the browser connects to."""
    return authority.issue("localhost", "localhost", names=("localhost", "127.0.0.1"))


@pytest.fixture(scope="session")
def browser(authority: CertificateAuthority, certificate: CertificatePair) -> Iterator[Browser]:
    with running_browser(certificate.certificate, authority.certificate) as browser:
        yield browser


@pytest.fixture(autouse=True)
def nodes_are_heard_of(request: pytest.FixtureRequest) -> None:
    """Sends heartbeats: a service is used by many tests, and its nodes have no agents that would report."""
    for name in {"provider", "entra_provider"} & set(request.fixturenames):
        request.getfixturevalue(name).fleet.speak()


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Opened]:
    opened = Opened(browser)
    yield opened
    opened.close()


@pytest.fixture(scope="session")
def cloud(
    authority: CertificateAuthority, certificate: CertificatePair, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cloud]:
    """Yields the lab's Entra ID. Its ARM is not used here."""
    with running_cloud(authority, tmp_path_factory.mktemp("cloud"), "https://localhost:9") as cloud:
        yield cloud


@pytest.fixture(scope="session")
def provider(
    authority: CertificateAuthority, certificate: CertificatePair, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Provider]:
    """Yields a service with nodes in every state, where users sign in with the admin key."""
    with running_pages(authority, certificate, tmp_path_factory.mktemp("provider")) as provider:
        provider.fleet.all()
        yield provider


@pytest.fixture(scope="session")
def entra_provider(
    authority: CertificateAuthority,
    certificate: CertificatePair,
    cloud: Cloud,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[EntraProvider]:
    """Yields a service with a few nodes, where users sign in with Entra ID."""
    with running_with_entra(authority, certificate, cloud, tmp_path_factory.mktemp("entra")) as provider:
        provider.fleet.ready("press-1")
        provider.fleet.never_joined("oven-new")
        yield provider
