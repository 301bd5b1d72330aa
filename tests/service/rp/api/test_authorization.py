"""Tests of every role, operation, scope and tenant of permissions.json over HTTP. Operations are of the contract."""

from __future__ import annotations

import json
import time
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from aks_flex_node.api.node_keys import rotation_audience
from aks_flex_node.timestamps import format_utc
from aks_flex_rp.auth.roles import Operation
from tests.node_key_client import HeldKey
from tests.service.rp.api import callers
from tests.service.rp.api.bodies import principal
from tests.service.rp.api.fake_clusters import ISLAND, NEIGHBOUR, PLANT
from tests.service.rp.api.tenants import running_tenant
from tests.unit.rp.auth.token_issuer import TENANT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from aks_flex_lab.pki import CertificateAuthority
    from tests.service.rp.api.client import Api
    from tests.service.rp.api.service_harness import Running, RunService
    from tests.service.rp.api.tenants import Tenant
    from tests.service.rp.api.traffic_recorder import Answer

TABLE: dict[str, Any] = json.loads((Path(__file__).parent / "permissions.json").read_text())
CONTRACT: dict[str, Any] = json.loads(files("aks_flex_rp.api").joinpath("openapi.json").read_text())
OPERATIONS = [*TABLE["contract"].values(), *TABLE["outside the contract"]]
TRUSTED = {"registryMirrors": {"docker.io": ["https://mirror.example"]}}
POOL = "matrix"
EXPIRES = format_utc(time.time() + 86400)
ORDERS = ("pause", "resume", "abort", "reverse", "approve")
# What a permitted operation answers whose resource does not exist or is not in the state that it needs.
UNMET: dict[str, set[int]] = {
    "revokeKey": {409},
    "release": {409},
    "readEnrolment": {404},
    "listMachines": {404},
    "revokeEnrolment": {404},
    "approveMachine": {404},
    "rejectMachine": {404},
    "allowRevision": {404},
    "readRollout": {404},
    "writeRollout": {404},
    "deleteRollout": {204},
    "listRolloutNodes": {404},
    **{f"{order}Rollout": {404} for order in ORDERS},
}
OTHER_TENANT = "bbbbbbbb-1111-4000-8000-000000000002"
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
KEYS = {"the key of the node": "{name}", "the key of another node": "{name}other"}
USER = {"idtyp": "user", "scp": "user_impersonation", "upn": "somebody@contoso.example", "app_displayname": None}


@pytest.fixture(scope="module")
def elsewhere(authority: CertificateAuthority) -> Iterator[Tenant]:
    """Yields a second tenant that the service accepts, in which no grant is."""
    with running_tenant(authority, OTHER_TENANT) as tenant:
        yield tenant


@pytest.fixture(scope="module")
def service(
    run_service: RunService,
    tenant: Tenant,
    elsewhere: Tenant,
    database: str | None,
    keys: Path,
) -> Iterator[Running]:
    """Yields a service with two tenants."""
    grants = [{**each, "tenantId": TENANT} for each in callers.GRANTS]
    auth = {"tenants": [tenant.settings, elsewhere.settings], "roles": grants}
    with run_service(database=database, keys_file=keys, auth=auth) as running:
        yield running


OTHERS: dict[str, Callable[[Tenant, Tenant, Api], str]] = {
    "admin key": lambda _tenant, _elsewhere, admin: admin.authorization,
    "the owner's object ID in another tenant": lambda _, elsewhere, __: elsewhere.application(
        callers.OWNER, oid=callers.OWNER
    ),
    "the node's application in another tenant": lambda _, elsewhere, __: elsewhere.application(callers.NODE),
    "a reader's program, used by a user": lambda tenant, _, __: tenant.application(
        callers.READER, oid=callers.STRANGER, sub="x", **USER
    ),
    "a member of the owners' group": lambda tenant, _, __: tenant.application(
        callers.STRANGER, groups=[callers.STRANGER, callers.OWNER], **USER
    ),
}


HELD_KEYS: dict[str, HeldKey] = {}  # by the credential made of the key


def rotation_to_a_new_key(api: Api, name: str) -> dict[str, str]:
    new, node_id, current = HeldKey(), api.cluster.node(name).lower(), HELD_KEYS.get(api.authorization)
    consent = current.proof(rotation_audience(node_id, new.thumbprint)) if current else ""
    return {"proof": new.proof(node_id), **({"consent": consent} if consent else {})}


def key_header(admin: Api, name: str) -> str:
    """Creates a node, binds a key to it, and returns the credential of the key."""
    url = admin.url_of(name, {"properties": {}})
    key = HeldKey()
    assert admin.fetch(url, key=key).status == 200
    assertion = key.assertion(admin.cluster.node(name), f"aks-flex-rp:of-{admin.cluster.name.lower()}")
    HELD_KEYS[f"Bearer {assertion}"] = key
    return f"Bearer {assertion}"


# Method and path below the cluster of each operation of the contract.
REQUESTS = {
    TABLE["contract"][operation["operationId"]]: (method.upper(), path.partition("{clusterName}/")[2])
    for path, methods in CONTRACT["paths"].items()
    for method, operation in methods.items()
}
SAME_REQUEST = {"poll": "read", "writeTrusted": "write", "writeTrustedPool": "writePool"}
VALUES = {"poolName": POOL, "revisionNumber": "1", "enrolmentId": "missing", "rolloutName": "missing"}
BODIES: dict[str, Any] = {
    "write": principal(),
    "writeTrusted": principal(nodeConfig=TRUSTED),
    "regenerateToken": {},
    "reportStatus": {},
    "writePool": {"properties": {}},
    "writeTrustedPool": {"properties": {"template": {"nodeConfig": TRUSTED}}},
    "allowRevision": {"revision": 1},
    "writeEnrolment": {"maxUses": 1, "expires": EXPIRES},
    "approveMachine": {"fingerprint": "a"},
    "rejectMachine": {"fingerprint": "a"},
    "writeRollout": {"properties": {"revision": 99}},
}


def do(operation: str, api: Api, name: str, etag: str) -> Answer:
    if operation == "audit":
        return api.audit(name)
    if operation == "operations":
        return api.ask("GET", "/providers/Microsoft.ContainerService/operations")
    method, path = REQUESTS[SAME_REQUEST.get(operation, operation)]
    body = rotation_to_a_new_key(api, name) if operation == "rotateKey" else BODIES.get(operation)
    headers = {"If-None-Match": etag} if operation == "poll" else {}
    return api.ask(method, f"{api.cluster}/{path.format(nodeName=name, **VALUES)}", body, headers=headers)


@pytest.mark.parametrize("scope", TABLE["scopes"])
@pytest.mark.parametrize("who", TABLE["allowed"])
def test_callers_are_allowed_exactly_the_operations_in_role_table(
    service: Running, tenant: Tenant, elsewhere: Tenant, name: str, who: str, scope: str
) -> None:
    admin = service.admin.at(SCOPES[scope])
    if who in KEYS:
        authorization = key_header(service.admin, KEYS[who].format(name=name))
    elif who in OTHERS:
        authorization = OTHERS[who](tenant, elsewhere, service.admin)
    else:
        authorization = tenant.application(APPLICATIONS[who])
    caller = admin.as_somebody(authorization)
    allowed = TABLE["allowed"][who][scope]
    for operation in OPERATIONS:
        etag = admin.put(name, principal()).headers["etag"]
        admin.pool("PUT", POOL, body={"properties": {}})

        answer = do(operation, caller, name, etag)

        everything = allowed == "all" and operation not in TABLE["only the node"]
        permitted = everything or operation in (*allowed, *TABLE["everybody"])
        expected = {200, 304, *UNMET.get(operation, ())} if permitted else {403}
        assert answer.status in expected, f"{who} {operation} at {scope}: {answer.status}"
        if answer.status == 403:
            assert answer.error["code"] == "AuthorizationFailed"
    for each in (admin, service.admin):
        each.delete(name)
    admin.pool("DELETE", POOL)


def test_role_table_has_every_operation_of_the_contract() -> None:
    """An operation without a row in the table would have no tested permissions."""
    known = {each["operationId"] for path in CONTRACT["paths"].values() for each in path.values()}
    assert set(TABLE["contract"]) == known
    named = [each for scopes in TABLE["allowed"].values() for each in scopes.values() if each != "all"]
    listed = {operation for each in named for operation in each}
    assert listed <= set(OPERATIONS)
    assert {each.value for each in Operation} <= set(OPERATIONS)


def test_contributor_gets_config_url_only_without_secrets_of_others(
    service: Running, tenant: Tenant, name: str
) -> None:
    contributor = service.admin.by(tenant, callers.CONTRIBUTOR)
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
    assert set(TABLE["allowed"]) == {*APPLICATIONS, *KEYS, *OTHERS}
    assert all(set(scopes) == set(SCOPES) for scopes in TABLE["allowed"].values())


def test_denied_request_is_audited_with_caller_and_source(service: Running, tenant: Tenant, name: str) -> None:
    service.admin.put(name, principal())
    stranger = service.admin.by(tenant, callers.STRANGER)

    refused = stranger.delete(name)

    [event] = service.admin.events(name, "delete")
    assert event["outcome"] == "denied"
    assert event["who"] == "app 70000000"
    assert event["source"] == "127.0.0.1"
    assert event["request"] == refused.headers["x-ms-request-id"]
    assert service.admin.get(name).status == 200
