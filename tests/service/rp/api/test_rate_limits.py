"""Tests of the rate limits of one caller."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from aks_flex_rp.api.poll_cache import PollCache, PollState
from tests.node_key_client import HeldKey
from tests.service.rp.api import callers
from tests.service.rp.api.bodies import principal
from tests.service.rp.api.fake_clusters import PLANT
from tests.service.rp.api.keyed_nodes import AUDIENCE, Machine, NodeWithKey

if TYPE_CHECKING:
    from tests.service.rp.api.service_harness import RunService
    from tests.service.rp.api.tenants import Tenant

FEW = {"reads_per_second": 0.01, "read_burst": 3, "writes_per_second": 0.01, "write_burst": 3}


def test_caller_over_rate_limit_gets_429_with_retry_after(run_service: RunService, tenant: Tenant) -> None:
    with run_service(limits=FEW) as service:
        admin = service.admin
        etag = [admin.put("edge", principal()) for _ in range(3)][-1].headers["etag"]

        refused = [admin.put("edge", principal()), admin.delete("edge"), admin.regenerate("edge")]
        reads = [admin.get("edge"), admin.list(), admin.get("edge", if_none_match=etag)]
        refused += [admin.get("edge"), admin.get("edge", if_none_match=etag), admin.audit("edge")]

        assert [answer.status for answer in reads] == [200, 200, 304]
        for answer in refused:
            answer.assert_refused(429, "TooManyRequests")
            assert int(answer.headers["retry-after"]) >= 1
        owner = admin.by(tenant, callers.OWNER)
        assert owner.get("edge").status == 200


def test_each_node_has_its_own_rate_limit(run_service: RunService, tenant: Tenant) -> None:
    with run_service(limits=FEW) as service:
        for name, identity in (("edge-1", callers.NODE), ("edge-2", callers.OTHER_NODE)):
            etag = service.admin.put(name, principal(identity)).headers["etag"]
            node = service.admin.by(tenant, identity)
            polls = [node.get(name, if_none_match=etag).status for _ in range(4)]
            assert polls == [304, 304, 304, 429]


def test_guessing_config_urls_is_rate_limited(run_service: RunService) -> None:
    with run_service(limits=FEW) as service:
        guesses = [service.connection.ask("GET", f"/configs/guess-{number}", {}) for number in range(4)]

        assert [answer.status for answer in guesses] == [404, 404, 404, 429]
        guesses[-1].assert_refused(429, "TooManyRequests")


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Returns the reads of nodes from the store, as they come."""
    found: list[str] = []
    look_up = PollCache._look_up

    async def read(cache: PollCache, node: tuple[str, str]) -> PollState:
        found.append(node[1])
        return await look_up(cache, node)

    monkeypatch.setattr(PollCache, "_look_up", read)
    return found


def test_assertions_of_invented_nodes_are_rate_limited_before_the_store(
    run_service: RunService, reads: list[str]
) -> None:
    """Every client can make a key and sign. The audience is known to all nodes of the cluster."""
    with run_service(limits=FEW) as service:
        machine = NodeWithKey(service, "edge").fetched()
        assert machine.get().status == 200
        del reads[:]

        answers = [Machine(service.admin, f"invented-{number}").get() for number in range(8)]

        assert [each.status for each in answers] == [401] * 3 + [429] * 5
        answers[-1].assert_refused(429, "TooManyRequests")
        assert len(reads) == 3
        fresh = machine.api(machine.assertion(begin=time.time() - 5))
        assert fresh.get("edge").status == 200, "a node that was heard from does not suffer for its address"


def test_assertions_that_are_not_valid_by_themselves_read_nothing(run_service: RunService, reads: list[str]) -> None:
    with run_service(limits=FEW) as service:
        key, resource = HeldKey(), PLANT.node("invented")
        good = key.assertion(resource, AUDIENCE)
        forged = [
            f"{good.rpartition('.')[0]}.{'A' * 86}",
            key.assertion(resource, AUDIENCE, begin=time.time() - 1000),
            key.assertion(resource, AUDIENCE, seconds=3600),
            key.assertion(resource, ""),
        ]
        for each in forged * 3:
            assert service.admin.as_somebody(f"Bearer {each}").get("invented").status == 401
        assert reads == []
        assert service.admin.as_somebody(f"Bearer {key.assertion(resource, 'aks-flex-rp:x')}").get("x").status == 401
        assert reads == [], "another audience: the node is not looked up"
