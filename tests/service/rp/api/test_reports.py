"""Tests of status reports, their effect, and missing heartbeats."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from tests.service.rp.api import callers
from tests.service.rp.api.bodies import principal, token
from tests.service.rp.api.fake_clusters import PLANT
from tests.service.rp.api.test_arm import assert_refused

if TYPE_CHECKING:
    from tests.service.rp.api.client import Api
    from tests.service.rp.api.service_harness import Running
    from tests.service.rp.api.tenants import Tenant


def status(api: Api, name: str) -> Any:
    return api.get(name).properties["status"]


def test_new_node_has_ready_unknown_with_reason_never_reported(admin: Api, name: str) -> None:
    admin.put(name, principal())

    [ready] = status(admin, name)["conditions"]
    assert (ready["type"], ready["status"], ready["reason"]) == ("Ready", "Unknown", "NeverReported")
    assert "lastSeen" not in admin.get(name).properties


def test_status_report_returns_desired_config_version(admin: Api, name: str) -> None:
    version = admin.put(name, principal()).properties["configVersion"]

    thanks = admin.report(name, {"appliedConfigVersion": "1"})

    assert thanks.status == 200
    assert thanks.json["configVersion"] == version
    assert thanks.json["lastSeen"] == admin.get(name).properties["lastSeen"]


def test_fields_missing_from_status_report_keep_their_value(admin: Api, name: str) -> None:
    admin.put(name, principal())
    admin.report(name, {"conditions": [{"type": "Ready", "status": "True"}], "agentVersion": "1.0", "driftCount": 2})
    admin.report(name, {"driftCount": 0})

    found = status(admin, name)

    assert {each["type"]: each["status"] for each in found["conditions"]} == {"Ready": "True"}
    assert (found["agentVersion"], found["driftCount"]) == ("1.0", 0)


def test_condition_missing_from_status_report_is_removed(admin: Api, name: str) -> None:
    admin.put(name, principal())
    ready, failed = ({"type": kind, "status": "True"} for kind in ("Ready", "UpgradeFailed"))
    admin.report(name, {"conditions": [ready, failed]})
    assert [each["type"] for each in status(admin, name)["conditions"]] == ["Ready", "UpgradeFailed"]

    admin.report(name, {"conditions": [ready]})

    assert [each["type"] for each in status(admin, name)["conditions"]] == ["Ready"]


def test_status_report_keeps_ready_condition_set_by_cluster(service: Running, name: str) -> None:
    service.admin.put(name, token())
    seen = {"type": "Ready", "status": "True", "reason": "KubeletReady", "kubeletVersion": "v1.34.4"}
    service.call(service.service.join_tracker.on_node_observed(PLANT.key, name, seen))

    service.admin.report(name, {"conditions": [{"type": "Drifted", "status": "False"}]})

    found = {each["type"]: each["status"] for each in status(service.admin, name)["conditions"]}
    assert found == {"Ready": "True", "Drifted": "False"}


def test_transition_time_changes_only_with_condition_status(admin: Api, name: str) -> None:
    admin.put(name, principal())
    long_ago = "2024-02-26T15:30:45Z"
    admin.report(name, {"conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": long_ago}]})

    admin.report(name, {"conditions": [{"type": "Ready", "status": "True", "reason": "Still"}]})
    [same] = status(admin, name)["conditions"]
    admin.report(name, {"conditions": [{"type": "Ready", "status": "False"}]})
    [other] = status(admin, name)["conditions"]

    assert (same["lastTransitionTime"], same["reason"]) == (long_ago, "Still")
    assert other["lastTransitionTime"] > long_ago
    assert "reason" not in other


def test_reported_status_survives_config_write(admin: Api, name: str) -> None:
    admin.put(name, principal())
    admin.report(name, {"conditions": [{"type": "Ready", "status": "True"}]})

    admin.put(name, principal(nodeConfig={"maxPods": 9}))

    assert status(admin, name)["conditions"][0]["status"] == "True"


def test_status_report_can_set_join_state_failed_but_not_joined(admin: Api, name: str) -> None:
    admin.put(name, principal())

    admin.report(name, {"joinState": "Joined"})
    assert status(admin, name)["joinState"] == "Created"
    admin.report(name, {"joinState": "Failed", "joinFailure": "No route to the API server."})
    found = status(admin, name)

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

    refused = admin.report(name, report)

    assert_refused(refused, 400, "InvalidRequestContent")
    assert refused.error["target"] == target


def test_silent_monitored_node_becomes_ready_unknown(service: Running, name: str) -> None:
    admin = service.admin
    admin.put(name, principal())
    admin.report(name, {"conditions": [{"type": "Ready", "status": "True"}]})
    assert status(admin, name)["conditions"][0]["status"] == "True"

    _make_silent(service, name, 121)

    [ready] = status(admin, name)["conditions"]
    assert (ready["status"], ready["reason"]) == ("Unknown", "NodeNotReporting")


def test_silent_unmonitored_node_keeps_ready_condition(service: Running, name: str) -> None:
    service.admin.put(name, token())
    service.admin.report(name, {"conditions": [{"type": "Ready", "status": "True"}]})

    _make_silent(service, name, 10_000)

    assert status(service.admin, name)["conditions"][0]["status"] == "True"


def _make_silent(service: Running, name: str, seconds: float) -> None:
    """Re-creates the node with an older heartbeat, because the time of a heartbeat only increases."""
    store = service.service.store
    node = service.call(store.node(PLANT.key, name))
    assert node
    service.call(store.delete_node(PLANT.key, name, None))
    later = replace(node, version=node.version + 1, etag=f'"{node.version + 1}"')
    service.call(store.put_node(later, None))
    service.call(store.seen([(PLANT.key, name, time.time() - seconds)]))


def test_last_seen_is_updated_only_by_polls_of_the_node_itself(service: Running, tenant: Tenant, name: str) -> None:
    admin = service.admin
    etag = admin.put(name, principal()).headers["etag"]
    owner = admin.as_somebody(tenant.application(callers.OWNER))
    owner.get(name, if_none_match=etag)
    owner.get(name)
    assert "lastSeen" not in admin.get(name).properties

    node = admin.as_somebody(tenant.application(callers.NODE))

    assert node.get(name, if_none_match=etag).status == 304
    assert "lastSeen" in admin.get(name).properties


def test_heartbeats_update_last_seen_only_when_poll_cache_is_flushed(
    service: Running, tenant: Tenant, name: str
) -> None:
    admin = service.admin
    etag = admin.put(name, principal()).headers["etag"]
    node = admin.as_somebody(tenant.application(callers.NODE))
    told = {"conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2024-02-26T15:30:45Z"}]}
    node.report(name, told)
    service.call(service.service.poll_cache.flush())
    before = service.call(service.service.store.node(PLANT.key, name))
    assert before

    for _ in range(20):
        assert node.get(name, if_none_match=etag).status == 304
        node.report(name, told)
    last_seen = admin.get(name).properties["lastSeen"]
    unflushed = service.call(service.service.store.node(PLANT.key, name))
    service.call(service.service.poll_cache.flush())
    after = service.call(service.service.store.node(PLANT.key, name))

    assert unflushed
    assert after
    assert unflushed.last_seen <= after.last_seen
    assert after.last_seen > before.last_seen
    assert last_seen
    assert after.status == before.status
