"""Fixtures: the service on both stores, one of each for the whole run. Every test creates its own nodes."""

from __future__ import annotations

import base64
from contextlib import contextmanager
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest

from tests.service.rp.api import callers
from tests.service.rp.api.enrolling_machine import PoolEnrolment
from tests.service.rp.api.fake_clusters import FakeClusters, known_clusters
from tests.service.rp.api.keyed_nodes import NodeWithKey
from tests.service.rp.api.service_harness import PLENTY, remove_nodes, running, settings
from tests.service.rp.api.tenants import running_tenant
from tests.service.rp.api.traffic_recorder import Recording
from tests.service.rp.store.servers import postgres_server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from aks_flex_lab.pki import CertificateAuthority
    from aks_flex_rp.settings import ServiceSettings
    from tests.service.rp.api.client import Api
    from tests.service.rp.api.service_harness import Running, RunService
    from tests.service.rp.api.tenants import Tenant
    from tests.service.rp.store.servers import PostgresServer

STORES = ("sqlite", "postgres")
numbers = count(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Runs the validation of all recorded traffic last."""
    items.sort(key=lambda item: item.path.name == "test_traffic.py")


@pytest.fixture(scope="session")
def recording() -> Recording:
    return Recording()


@pytest.fixture(scope="session")
def tenant(authority: CertificateAuthority) -> Iterator[Tenant]:
    with running_tenant(authority) as tenant:
        yield tenant


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    with postgres_server() as server:
        yield server


@pytest.fixture(scope="session")
def ca_cert_data(authority: CertificateAuthority) -> str:
    return base64.b64encode(authority.certificate.read_bytes()).decode()


@pytest.fixture(scope="session")
def run_service(
    tenant: Tenant, ca_cert_data: str, recording: Recording, tmp_path_factory: pytest.TempPathFactory
) -> RunService:
    """Returns a function that runs another service; `words` are settings."""

    @contextmanager
    def run(clusters: FakeClusters | None = None, **words: Any) -> Iterator[Running]:
        auth = {"tenants": [tenant.settings], "roles": callers.GRANTS}
        words = {"nodes": {"allow_exec": True}, **words}
        room = words.pop("room", None) or tmp_path_factory.mktemp("service") / "state"
        made: ServiceSettings = settings(room, **{"auth": auth, "limits": PLENTY, **words})
        with running(made, clusters or FakeClusters.of(known_clusters(ca_cert_data)), recording) as service:
            yield service

    return run


@pytest.fixture(scope="session", params=STORES)
def database(request: pytest.FixtureRequest) -> str | None:
    """Returns the address of an empty database; None means a SQLite file."""
    if request.param == "sqlite":
        return None
    server: PostgresServer = request.getfixturevalue("postgres")
    return server.new_database()


@pytest.fixture(scope="session")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the key file of all services with the same database."""
    return tmp_path_factory.mktemp("keys") / "keys"


@pytest.fixture(scope="session")
def service(run_service: RunService, database: str | None, keys: Path) -> Iterator[Running]:
    with run_service(database=database, keys_file=keys) as running:
        yield running


@pytest.fixture
def admin(service: Running) -> Api:
    return service.admin


@pytest.fixture
def name() -> str:
    """Returns a node name that no other test uses."""
    return f"edge-{next(numbers)}"


@pytest.fixture
def node(service: Running, name: str) -> NodeWithKey:
    return NodeWithKey(service, name)


@pytest.fixture
def enrolment(admin: Api) -> Callable[..., PoolEnrolment]:
    """Returns a function that creates enrolments of a new pool."""
    pool = f"en{next(numbers)}"
    return lambda **body: PoolEnrolment.of(admin, pool, **body)


@pytest.fixture
def made(enrolment: Callable[..., PoolEnrolment]) -> PoolEnrolment:
    """Returns an enrolment for two machines."""
    return enrolment()


@pytest.fixture(autouse=True)
def _no_shared_identities(request: pytest.FixtureRequest) -> Iterator[None]:
    """Deletes the nodes of a test from its services: many tests use one identity, which only one node can have."""
    fixtures = {"service", "pair"} & set(request.fixturenames)
    services = [request.getfixturevalue(each) for each in fixtures]
    prefix = request.getfixturevalue("name") if "name" in request.fixturenames else "no node"
    yield
    for found in services:
        remove_nodes(found[0] if isinstance(found, tuple) else found, prefix)
