"""Tests of the audit log: caller, action, time, address and changes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.service.rp.api import callers
from tests.service.rp.api.bodies import SECRET, principal
from tests.service.rp.api.fake_clusters import PLANT

if TYPE_CHECKING:
    from tests.service.rp.api.client import Api
    from tests.service.rp.api.tenants import Tenant


def events(api: Api, name: str, **query: str) -> Any:
    return api.audit(name, **query).json["value"]


def test_audit_records_every_write_newest_first(admin: Api, tenant: Tenant, name: str) -> None:
    owner = admin.by(tenant, callers.OWNER)
    made = owner.put(name, principal(), url=True)
    owner.put(name, principal(secret=None))
    owner.regenerate(name)
    owner.credentials(name)
    owner.delete(name)

    found = events(admin, name)

    whats = ["delete", "listCredentials", "regenerateToken", "update", "create"]
    assert [each["what"] for each in found] == whats
    created = found[-1]
    assert (created["who"], created["whoId"]) == ("app 10000000", callers.OWNER[:-1] + "0")
    assert len(events(admin, name, who=created["whoId"])) == len(whats)
    assert created["resource"] == f"{PLANT}/flexNodeConfig/{name}"
    assert created["source"] == "127.0.0.1"
    assert created["outcome"] == "ok"
    assert created["request"] == made.headers["x-ms-request-id"]
    assert created["at"].endswith("Z")
    assert created["detail"]["configVersion"] == made.properties["configVersion"]
    assert (created["detail"]["urlIssued"], created["detail"]["secretWritten"]) == (True, True)
    assert found[3]["detail"]["secretWritten"] is False


def test_audit_records_changed_properties_without_secrets(admin: Api, name: str) -> None:
    admin.put(name, principal(nodeConfig={"maxPods": 20, "labels": {"a": "b"}}))
    admin.put(name, principal(secret=f"{SECRET}-2", nodeConfig={"maxPods": 30}))

    [update, _] = events(admin, name)

    changed = update["detail"]["changed"]
    assert changed == {"nodeConfig.maxPods": [20, 30], "nodeConfig.labels": [{"a": "b"}, None]}
    assert SECRET not in admin.audit(name).text


def test_cluster_audit_includes_events_of_its_nodes(admin: Api, name: str) -> None:
    admin.put(name, principal())

    assert any(each["resource"].endswith(f"/{name}") for each in admin.events())
    assert admin.audit(who="nobody").json["value"] == []
    shouted = admin.ask("GET", "/audit", query={"resource": str(PLANT).upper(), "what": "create"})
    assert any(each["resource"].endswith(f"/{name}") for each in shouted.json["value"])


@pytest.mark.parametrize("query", [{"limit": "many"}, {"before": "-1"}, {"before": "9" * 20}])
def test_invalid_audit_query_is_refused(admin: Api, query: dict[str, str]) -> None:
    admin.audit(**query).assert_refused(400, "InvalidRequestContent")


def test_only_local_admin_can_read_audit_without_resource(admin: Api, tenant: Tenant, name: str) -> None:
    admin.put(name)
    owner = admin.by(tenant, callers.EVERYWHERE)

    assert admin.ask("GET", "/audit", query={"limit": "1"}).status == 200
    owner.ask("GET", "/audit", query={}).assert_refused(400, "InvalidRequestContent")
    admin.as_somebody("").ask("GET", "/audit", query={}).assert_refused(401, "AuthenticationFailed")
