"""Tests of every role, operation and scope of permissions.json over HTTP."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.service.rp.api import callers
from tests.service.rp.api.bodies import principal
from tests.service.rp.api.fake_clusters import ISLAND, NEIGHBOUR, PLANT

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.service.rp.api.client import Api
    from tests.service.rp.api.service_harness import Running
    from tests.service.rp.api.tenants import Tenant
    from tests.service.rp.api.traffic_recorder import Answer

TABLE: dict[str, Any] = json.loads((Path(__file__).parent / "permissions.json").read_text())
SCOPES = {"cluster": PLANT, "neighbour": NEIGHBOUR, "island": ISLAND}
APPLICATIONS = {
    "owner everywhere": callers.EVERYWHERE,
    "owner of the group": callers.GROUP_OWNER,
    "owner of the cluster": callers.OWNER,
    "contributor": callers.CONTRIBUTOR,
    "reader": callers.READER,
    "reader of the subscription": callers.SUBSCRIPTION_READER,
    "the node itself": callers.NODE,
    "another node": callers.OTHER_NODE,
    "a stranger": callers.STRANGER,
}
USER = {"idtyp": "user", "scp": "user_impersonation", "upn": "somebody@contoso.example", "app_displayname": None}


def header(tenant: Tenant, admin: Api, who: str) -> str:
    if who == "admin key":
        return admin.authorization
    if who == "a reader's program, used by a user":
        return tenant.application(callers.READER, oid=callers.STRANGER, sub="x", **USER)
    if who == "a member of the owners' group":
        return tenant.application(callers.STRANGER, groups=[callers.STRANGER, callers.OWNER], **USER)
    return tenant.application(APPLICATIONS[who])


def do(operation: str, api: Api, name: str, etag: str) -> Answer:
    doing: dict[str, Callable[[], Answer]] = {
        "read": lambda: api.get(name),
        "poll": lambda: api.get(name, if_none_match=etag),
        "list": api.list,
        "write": lambda: api.put(name, principal()),
        "delete": lambda: api.delete(name),
        "regenerateToken": lambda: api.regenerate(name),
        "listConfigUrl": lambda: api.list_url(name),
        "reportStatus": lambda: api.report(name, {}),
        "listCredentials": lambda: api.credentials(name),
        "audit": lambda: api.audit(name),
    }
    return doing[operation]()


@pytest.mark.parametrize("scope", TABLE["scopes"])
@pytest.mark.parametrize("who", TABLE["allowed"])
def test_callers_are_allowed_exactly_the_operations_in_role_table(
    service: Running, tenant: Tenant, name: str, who: str, scope: str
) -> None:
    admin = service.admin.at(SCOPES[scope])
    caller = admin.as_somebody(header(tenant, service.admin, who))
    allowed = TABLE["allowed"][who][scope]
    for operation in TABLE["operations"]:
        etag = admin.put(name, principal()).headers["etag"]

        answer = do(operation, caller, name, etag)

        expected = {200, 304} if allowed == "all" or operation in allowed else {403}
        assert answer.status in expected, f"{who} {operation} at {scope}: {answer.status}"
        if answer.status == 403:
            assert answer.error["code"] == "AuthorizationFailed"
    admin.delete(name)


def test_contributor_gets_config_url_only_without_secrets_of_others(
    service: Running, tenant: Tenant, name: str
) -> None:
    contributor = service.admin.as_somebody(header(tenant, service.admin, "contributor"))
    assert contributor.put(name).status == 201
    assert contributor.regenerate(name).status == 200  # the token is created by this request
    service.admin.put(name, principal())

    for refused in (
        contributor.regenerate(name),
        contributor.list_url(name),
        contributor.put(name, principal(secret=None), url=True),
    ):
        assert refused.status == 403
        assert "owner" in refused.error["message"]
    assert contributor.put(name, principal(), url=True).status == 200  # the caller sends the secret


def test_role_table_covers_every_caller_and_scope() -> None:
    assert set(TABLE["allowed"]) == {
        *APPLICATIONS,
        "admin key",
        "a reader's program, used by a user",
        "a member of the owners' group",
    }
    assert all(set(scopes) == set(SCOPES) for scopes in TABLE["allowed"].values())


def test_denied_request_is_audited_with_caller_and_source(service: Running, tenant: Tenant, name: str) -> None:
    service.admin.put(name, principal())
    stranger = service.admin.as_somebody(tenant.application(callers.STRANGER))

    refused = stranger.delete(name)

    [event] = service.admin.audit(name, what="delete").json["value"]
    assert event["outcome"] == "denied"
    assert event["who"] == "app 70000000"
    assert event["source"] == "127.0.0.1"
    assert event["request"] == refused.headers["x-ms-request-id"]
    assert service.admin.get(name).status == 200
