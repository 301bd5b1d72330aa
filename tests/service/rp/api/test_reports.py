"""Tests of status reports, their effect, and missing heartbeats."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.service.rp.api import callers
from tests.service.rp.api.bodies import principal

if TYPE_CHECKING:
    from tests.service.rp.api.client import Api
    from tests.service.rp.api.service_harness import Running
    from tests.service.rp.api.tenants import Tenant


def test_status_report_returns_desired_config_version(admin: Api, name: str) -> None:
    version = admin.put(name, principal()).properties["configVersion"]

    thanks = admin.report(name, {"appliedConfigVersion": "1"})

    assert thanks.status == 200
    assert thanks.json["configVersion"] == version
    assert thanks.json["lastSeen"] == admin.get(name).properties["lastSeen"]


def test_status_report_can_set_join_state_failed_but_not_joined(admin: Api, name: str) -> None:
    admin.put(name, principal())

    admin.report(name, {"joinState": "Joined"})
    assert admin.status(name)["joinState"] == "Created"
    admin.report(name, {"joinState": "Failed", "joinFailure": "No route to the API server."})
    found = admin.status(name)

    assert (found["joinState"], found["joinFailure"]) == ("Failed", "No route to the API server.")


@pytest.mark.parametrize(
    ("report", "target"),
    [
        ({"conditions": [{"type": "Ready", "status": "Perhaps"}]}, "conditions[0].status"),
        ({"conditions": [{"status": "True"}]}, "conditions[0].type"),
        (
            {"conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "soon"}]},
            "conditions[0].lastTransitionTime",
        ),
        ({"conditions": [{"type": str(number), "status": "True"} for number in range(65)]}, "conditions"),
        ({"lastConfigApplied": "2024-02-26T14:00:00"}, "lastConfigApplied"),
        ({"lastConfigApplied": 1708956000}, "lastConfigApplied"),
        ({"lastDriftDetected": "2024-02-26"}, "lastDriftDetected"),
        ({"appliedConfigVersion": "new"}, "appliedConfigVersion"),
        ({"driftCount": -1}, "driftCount"),
        ({"joinState": "Lost"}, "joinState"),
        ({"joinFailure": "x" * 40_000}, "joinFailure"),
        ({"more": 1}, "more"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_invalid_status_report_is_refused_with_target(
    admin: Api, name: str, report: dict[str, Any], target: str
) -> None:
    admin.put(name, principal())

    admin.report(name, report).assert_refused(400, "InvalidRequestContent", target)


def test_last_seen_is_updated_only_by_polls_of_the_node_itself(service: Running, tenant: Tenant, name: str) -> None:
    admin = service.admin
    etag = admin.put(name, principal()).headers["etag"]
    owner = admin.by(tenant, callers.OWNER)
    owner.get(name, if_none_match=etag)
    owner.get(name)
    assert "lastSeen" not in admin.get(name).properties

    node = admin.by(tenant, callers.NODE)

    assert node.get(name, if_none_match=etag).status == 304
    assert "lastSeen" in admin.get(name).properties


def test_heartbeats_update_last_seen_only_when_poll_cache_is_flushed(
    service: Running, tenant: Tenant, name: str
) -> None:
    admin = service.admin
    etag = admin.put(name, principal()).headers["etag"]
    node = admin.by(tenant, callers.NODE)
    told = {"conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2024-02-26T15:30:45Z"}]}
    node.report(name, told)
    service.call(service.service.poll_cache.flush())
    before = service.node(name)

    for _ in range(20):
        assert node.get(name, if_none_match=etag).status == 304
        node.report(name, told)
    last_seen = admin.get(name).properties["lastSeen"]
    unflushed = service.node(name)
    service.call(service.service.poll_cache.flush())
    after = service.node(name)

    assert unflushed.last_seen <= after.last_seen
    assert after.last_seen > before.last_seen
    assert last_seen
    assert after.status == before.status
