"""Tests of the rate limits of one caller."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.service.rp.api import callers
from tests.service.rp.api.bodies import principal
from tests.service.rp.api.test_arm import assert_refused

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from tests.service.rp.api.service_harness import Running
    from tests.service.rp.api.tenants import Tenant

FEW = {"reads_per_second": 0.01, "read_burst": 3, "writes_per_second": 0.01, "write_burst": 3}


def test_caller_over_rate_limit_gets_429_with_retry_after(
    run_service: Callable[..., AbstractContextManager[Running]], tenant: Tenant
) -> None:
    with run_service(limits=FEW) as service:
        admin = service.admin
        etag = [admin.put("edge", principal()) for _ in range(3)][-1].headers["etag"]

        refused = [admin.put("edge", principal()), admin.delete("edge"), admin.regenerate("edge")]
        reads = [admin.get("edge"), admin.list(), admin.get("edge", if_none_match=etag)]
        refused += [admin.get("edge"), admin.get("edge", if_none_match=etag), admin.audit("edge")]

        assert [answer.status for answer in reads] == [200, 200, 304]
        for answer in refused:
            assert_refused(answer, 429, "TooManyRequests")
            assert int(answer.headers["retry-after"]) >= 1
        owner = admin.as_somebody(tenant.application(callers.OWNER))
        assert owner.get("edge").status == 200


def test_each_node_has_its_own_rate_limit(
    run_service: Callable[..., AbstractContextManager[Running]], tenant: Tenant
) -> None:
    with run_service(limits=FEW) as service:
        for name, identity in (("edge-1", callers.NODE), ("edge-2", callers.OTHER_NODE)):
            etag = service.admin.put(name, principal(identity)).headers["etag"]
            node = service.admin.as_somebody(tenant.application(identity))
            polls = [node.get(name, if_none_match=etag).status for _ in range(4)]
            assert polls == [304, 304, 304, 429]


def test_guessing_config_urls_is_rate_limited(run_service: Callable[..., AbstractContextManager[Running]]) -> None:
    with run_service(limits=FEW) as service:
        guesses = [service.connection.ask("GET", f"/configs/guess-{number}", {}) for number in range(4)]

        assert [answer.status for answer in guesses] == [404, 404, 404, 429]
        assert_refused(guesses[-1], 429, "TooManyRequests")
