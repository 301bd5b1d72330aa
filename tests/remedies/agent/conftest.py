"""Fixtures: a machine of its own for commands, and a resource provider."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

import pytest

from aks_flex_lab.pki import CertificateAuthority
from tests.remedies.agent.sandbox import Sandbox
from tests.service.rp.api.fake_clusters import known_clusters
from tests.service.rp.api.service_harness import settings
from tests.service.rp.cli.cli_harness import Person
from tests.service.rp.cli.conftest import add_clusters, serving

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.service.rp.api.service_harness import Running


@pytest.fixture(scope="session")
def _sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    found = Sandbox.open(tmp_path_factory.mktemp("sandbox"))
    yield found
    found.close()


@pytest.fixture
def machine(_sandbox: Sandbox) -> Iterator[Sandbox]:
    """Yields a machine that was never a node."""
    _sandbox.reset()
    yield _sandbox
    _sandbox.reset()


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> CertificateAuthority:
    authority = CertificateAuthority(tmp_path_factory.mktemp("pki"))
    authority.ensure()
    return authority


@pytest.fixture(scope="module")
def service(authority: CertificateAuthority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Yields a resource provider with one cluster."""
    made = settings(tmp_path_factory.mktemp("provider") / "state")
    clusters = known_clusters(base64.b64encode(authority.certificate.read_bytes()).decode())[:1]
    add_clusters(made, clusters)
    with serving(made, clusters) as service:
        yield service


@pytest.fixture(scope="module")
def provider(service: Running) -> Person:
    """Returns a user of the resource provider."""
    return Person(service.room)
