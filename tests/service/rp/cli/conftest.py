"""Fixtures: a service on SQLite with simulated clusters, and a user on its machine."""

from __future__ import annotations

import asyncio
import base64
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from aks_flex_rp import instance_lock
from aks_flex_rp.cluster_registry import connection_seal_context
from aks_flex_rp.crypto import encryption
from aks_flex_rp.service import open_sealer, open_store
from aks_flex_rp.store.model import Cluster
from tests.service.rp.api.fake_clusters import FakeClusters, known_clusters
from tests.service.rp.api.service_harness import running, settings
from tests.service.rp.api.traffic_recorder import Recording
from tests.service.rp.cli.cli_harness import Person

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    from aks_flex_lab.pki import CertificateAuthority
    from aks_flex_rp.nodes.context import ClusterInfo
    from aks_flex_rp.settings import ServiceSettings
    from tests.service.rp.api.service_harness import Running


@pytest.fixture(scope="session")
def clusters(authority: CertificateAuthority) -> list[ClusterInfo]:
    return known_clusters(base64.b64encode(authority.certificate.read_bytes()).decode())


@contextmanager
def serving(made: ServiceSettings, clusters: list[ClusterInfo]) -> Iterator[Running]:
    """Runs the service as `serve` does, so that commands on the same machine find it."""
    with (
        instance_lock.exclusive(made.state_dir) as place,
        running(made, FakeClusters.of(clusters), Recording()) as service,
    ):
        keys = tuple(each.id for each in encryption.list_keys(made.keys, {}))
        place.publish(instance_lock.RunningInstance(made.origin, made.host, made.port, 1, keys))
        yield service


@dataclass(frozen=True)
class LocalService(Person):
    """A user of a machine, and the service there, which runs when a test says so."""

    made: ServiceSettings
    clusters: list[ClusterInfo]

    def serving(self) -> AbstractContextManager[Running]:
        return serving(self.made, self.clusters)


def add_clusters(made: ServiceSettings, clusters: list[ClusterInfo]) -> None:
    """Adds clusters to the store as `cluster add` does, with connections that do not work."""

    async def add() -> None:
        store, sealer = open_store(made), open_sealer(made)
        await store.start()
        for each in clusters:
            sealed = sealer.seal(b'{"kind": "nowhere"}', connection_seal_context(each.id.key))
            await store.put_cluster(Cluster(each.id.key, str(each.id), each.facts.to_document(), sealed), None)
        await store.stop()

    asyncio.run(add())


@pytest.fixture
def made(tmp_path: Path) -> ServiceSettings:
    return settings(tmp_path / "state")


@pytest.fixture
def service(made: ServiceSettings, clusters: list[ClusterInfo]) -> Iterator[Running]:
    add_clusters(made, clusters)
    with serving(made, clusters) as service:
        yield service


@pytest.fixture
def person(service: Running) -> Person:
    return Person(service.room)
