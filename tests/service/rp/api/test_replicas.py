"""Tests of several replicas on one database."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from tests.service.rp.api import callers
from tests.service.rp.api.bodies import SECRET, principal, token
from tests.service.rp.api.fake_clusters import FakeClusters, known_clusters
from tests.service.rp.api.test_polls import SOON, held, poll

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.service.rp.api.service_harness import Running, RunService
    from tests.service.rp.api.tenants import Tenant
    from tests.service.rp.store.servers import PostgresServer


@pytest.fixture(scope="module")
def pair(
    run_service: RunService,
    postgres: PostgresServer,
    ca_cert_data: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[Running, Running]]:
    """Yields two replicas with the same keys."""
    database, keys = postgres.new_database(), tmp_path_factory.mktemp("keys") / "keys"
    shared = FakeClusters.of(known_clusters(ca_cert_data))
    words = {"database": database, "keys_file": keys}
    with run_service(shared, **words) as one, run_service(shared, **words) as other:
        yield one, other


@pytest.mark.parametrize("ending", ["write", "deletion"])
def test_held_poll_on_one_replica_returns_after_change_on_the_other(
    pair: tuple[Running, Running], tenant: Tenant, name: str, ending: str
) -> None:
    one, other = pair
    one.admin.put(name, principal())
    node = other.admin.by(tenant, callers.NODE)
    with ThreadPoolExecutor(1) as pool:
        waiting = poll(pool, node, name)
        held(other)

        done = one.admin.put(name, principal()) if ending == "write" else one.admin.delete(name)

        answer = waiting.result(SOON)
    assert done.status == 200
    assert answer.status == (200 if ending == "write" else 404)


def test_node_written_on_one_replica_is_readable_on_the_other(pair: tuple[Running, Running], name: str) -> None:
    one, other = pair
    one.admin.put(name, principal())

    assert other.admin.credentials(name).json["servicePrincipal"]["clientSecret"] == SECRET
    assert other.admin.put(name, principal(secret=None), if_match=one.admin.get(name).headers["etag"]).status == 200
    assert other.admin.get(name).headers["etag"] == one.admin.get(name).headers["etag"]


def test_config_url_is_served_and_revoked_on_every_replica(pair: tuple[Running, Running], name: str) -> None:
    one, other = pair
    url = one.admin.url_of(name, token())
    elsewhere = url.replace(one.connection.url, other.connection.url)

    assert other.admin.fetch(elsewhere).status == 200
    assert one.admin.status(name)["joinState"] == "ConfigFetched"
    other.admin.delete(name)
    assert one.admin.fetch(url).status == 404


def test_config_versions_increase_across_replicas(pair: tuple[Running, Running], name: str) -> None:
    one, other = pair
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda number: (one, other)[number % 2].admin.put(name), range(12)))

    done = [answer.properties["configVersion"] for answer in answers if answer.status in {200, 201}]
    assert {answer.status for answer in answers} <= {200, 201, 409}
    assert len(done) == len(set(done))
    assert one.admin.get(name).properties["configVersion"] == max(done, key=int)
