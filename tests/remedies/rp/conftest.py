"""Fixtures of the tests of `aks-flex-rp`, and an API server on loopback."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

import pytest

from tests.remedies.rp.harness import api_server, azure_stub
from tests.service.conftest import authority, cloud, provider
from tests.service.rp.api.service_harness import settings
from tests.service.rp.cli.cli_harness import Person
from tests.service.rp.cli.conftest import add_clusters, clusters, made, person, service, serving

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from aks_flex_lab.pki import CertificateAuthority
    from aks_flex_rp.nodes.context import ClusterInfo
    from tests.remedies.rp.harness import ApiServer, AzureStub
    from tests.service.lab.cloud_harness import Cloud
    from tests.service.rp.api.service_harness import Running

numbers = count(1)
__all__ = ["authority", "cloud", "clusters", "made", "person", "provider", "service"]


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory, clusters: list[ClusterInfo]) -> Iterator[Running]:
    """Yields one service for all tests that only need one. Every test creates its own nodes."""
    made = settings(tmp_path_factory.mktemp("rp") / "state")
    add_clusters(made, clusters)
    with serving(made, clusters) as running:
        yield running


@pytest.fixture
def user(shared: Running) -> Person:
    """Returns a user on the machine of the shared service."""
    return Person(shared.room)


@pytest.fixture
def name() -> str:
    """Returns a new name of a node."""
    return f"edge-{next(numbers)}"


@pytest.fixture
def somebody(tmp_path: Path) -> Person:
    """Returns a user whose service was never started."""
    return Person(tmp_path / "state")


@pytest.fixture
def kubernetes(authority: CertificateAuthority, tmp_path: Path) -> Iterator[ApiServer]:
    with api_server(authority, tmp_path) as server:
        yield server


@pytest.fixture
def azure(authority: CertificateAuthority, cloud: Cloud, tmp_path: Path) -> Iterator[AzureStub]:
    with azure_stub(authority, cloud, tmp_path) as stub:
        yield stub
