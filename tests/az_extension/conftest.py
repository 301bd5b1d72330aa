"""Fixtures: a site, and users with the real az and the built extension. Every test creates its own nodes."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

import pytest

from tests.az_extension.harness import running_site
from tests.az_extension.recording_proxy import standing_between
from tests.az_extension.warm_az import warmed
from tests.service.rp.api.service_harness import remove_nodes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.az_extension.harness import Site
    from tests.az_extension.recording_proxy import Between
    from tests.az_extension.warm_az import WarmAz
    from tests.azure_cli import Az

numbers = count(1)


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with running_site(tmp_path_factory.mktemp("site")) as site:
        yield site


@pytest.fixture(scope="session")
def owner(site: Site, tmp_path_factory: pytest.TempPathFactory) -> Az:
    """Returns an owner's az; each command starts a new process."""
    return site.signed_in("owner", tmp_path_factory.mktemp("owner"))


@pytest.fixture(scope="session")
def az(owner: Az) -> Iterator[WarmAz]:
    """Yields the owner's az with a shorter start."""
    with warmed(owner) as az:
        yield az


@pytest.fixture(scope="session")
def reader(site: Site, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarmAz]:
    with warmed(site.signed_in("reader", tmp_path_factory.mktemp("reader"))) as az:
        yield az


@pytest.fixture
def name() -> str:
    """Returns a node name that no other test uses."""
    return f"edge-{next(numbers)}"


@pytest.fixture(autouse=True)
def _no_shared_identities(request: pytest.FixtureRequest) -> Iterator[None]:
    """Deletes the nodes of a test that have an identity, which only one node can have."""
    site: Site | None = request.getfixturevalue("site") if "site" in request.fixturenames else None
    yield
    if site:
        remove_nodes(site.service, "edge-")


@pytest.fixture
def between(site: Site) -> Iterator[Between]:
    with standing_between(site.service.connection.url, site.cloud.ca, site.pair) as between:
        yield between
