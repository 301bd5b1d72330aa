"""Tests of ARM's conventions."""

from __future__ import annotations

import json
import re
import uuid
from typing import TYPE_CHECKING

import pytest

from tests.service.rp.api import callers
from tests.service.rp.api.bodies import principal, token
from tests.service.rp.api.client import API_VERSION
from tests.service.rp.api.fake_clusters import NOWHERE, PLANT

if TYPE_CHECKING:
    from tests.service.rp.api.client import Api
    from tests.service.rp.api.tenants import Tenant


UNKNOWN_PATHS = (
    "/subscriptions",
    f"{PLANT}",
    f"{PLANT}/agentPools/a",
    f"{PLANT}/flexNodeConfig/a/unknownAction",
    f"{PLANT}/flexNodeConfig/a/regenerateToken/b",
    "/subscriptions/not-a-guid/resourceGroups/g/providers/Microsoft.ContainerService/managedClusters/c/flexNodeConfig",
    "/configs",
    "/nothing",
)


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
def test_request_without_api_version_is_refused(admin: Api, name: str, method: str) -> None:
    admin.ask(method, admin.path(name), {}, query={}).assert_refused(400, "MissingApiVersionParameter")


def test_unknown_api_version_is_refused_and_error_lists_supported_version(admin: Api, name: str) -> None:
    refused = admin.ask("GET", admin.path(name), query={"api-version": "2020-01-01"})

    refused.assert_refused(400, "InvalidApiVersionParameter")
    assert API_VERSION in refused.error["message"]


def test_api_version_is_case_insensitive(admin: Api, name: str) -> None:
    admin.put(name)

    assert admin.ask("GET", admin.path(name), query={"Api-Version": API_VERSION.upper()}).status == 200


def test_request_for_unregistered_cluster_returns_parent_not_found(admin: Api, name: str) -> None:
    for answer in (admin.at(NOWHERE).get(name), admin.at(NOWHERE).put(name), admin.at(NOWHERE).list()):
        answer.assert_refused(404, "ParentResourceNotFound")


def test_request_for_missing_node_returns_resource_not_found(admin: Api, name: str) -> None:
    for answer in (admin.get(name), admin.regenerate(name), admin.report(name, {}), admin.credentials(name)):
        answer.assert_refused(404, "ResourceNotFound")
        assert name in answer.error["message"]


def test_caller_without_role_gets_same_403_for_existing_and_missing_node(
    admin: Api, tenant: Tenant, name: str
) -> None:
    admin.put(name)
    stranger = admin.by(tenant, callers.STRANGER)

    there, not_there = stranger.get(name), stranger.get("not-there")
    nowhere = stranger.at(NOWHERE).get(name)

    for answer in (there, not_there, nowhere):
        answer.assert_refused(403, "AuthorizationFailed")
    assert there.error["message"].replace(name, "*") == not_there.error["message"].replace("not-there", "*")


@pytest.mark.parametrize("path", UNKNOWN_PATHS)
def test_unknown_path_returns_invalid_resource_type(admin: Api, path: str) -> None:
    admin.ask("GET", path).assert_refused(404, "InvalidResourceType")


@pytest.mark.parametrize("bad", ["-edge", "edge-", "ed_ge", "a..b", "x" * 64, "a%20b", "ä"])
def test_invalid_node_name_is_refused(admin: Api, bad: str) -> None:
    admin.put(bad).assert_refused(400, "InvalidResourceName", "nodeName")


def test_node_resource_has_arm_envelope(admin: Api, name: str) -> None:
    made = admin.put(name, token(maxPods=20))

    shown = admin.get(name)

    assert shown.json.keys() == {"id", "name", "type", "etag", "systemData", "properties"}
    assert shown.json["id"] == f"{PLANT}/flexNodeConfig/{name}"
    assert shown.json["type"] == "Microsoft.ContainerService/managedClusters/flexNodeConfig"
    assert shown.json["etag"] == shown.headers["etag"] == made.headers["etag"]
    assert shown.json["etag"] == f'"{shown.properties["configVersion"]}"'
    system = shown.json["systemData"]
    assert (system["createdBy"], system["createdByType"]) == ("local admin key", "Application")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", system["createdAt"])


def test_system_data_keeps_creator_and_updates_last_modifier(admin: Api, tenant: Tenant, name: str) -> None:
    first = admin.put(name).json["systemData"]
    owner = admin.by(tenant, callers.OWNER)

    last = owner.put(name).json["systemData"]

    assert {key: last[key] for key in first if key.startswith("created")} == {
        key: first[key] for key in first if key.startswith("created")
    }
    assert last["lastModifiedBy"] == "app 10000000"
    assert last["lastModifiedAt"] > first["lastModifiedAt"]


def test_names_are_case_insensitive_and_id_keeps_last_written_case(admin: Api, name: str) -> None:
    admin.put(name)
    spoken = name.upper()

    updated = admin.put(spoken)

    assert updated.status == 200
    assert admin.get(name).json["name"] == spoken
    assert admin.get(name).json["id"].endswith(f"/flexNodeConfig/{spoken}")
    assert admin.get(name).properties["config"]["node"]["name"] == name
    shouted = admin.ask("GET", admin.path(name).upper())
    assert shouted.json == admin.get(name).json
    assert admin.ask("POST", admin.path(name, "REGENERATETOKEN"), {}).status == 200


def test_every_response_has_unique_request_id(admin: Api, name: str) -> None:
    answers = [admin.get(name), admin.put(name), admin.get(name), admin.list(), admin.ask("PATCH", admin.path(name))]

    ids = {str(uuid.UUID(answer.headers["x-ms-request-id"])) for answer in answers}
    assert len(ids) == len(answers)


def test_client_request_id_is_returned_only_on_request(admin: Api, name: str) -> None:
    admin.put(name)
    mine = {"x_ms_client_request_id": "mine-1"}

    assert "x-ms-client-request-id" not in admin.get(name, **mine).headers
    asked = admin.get(name, **mine, x_ms_return_client_request_id="true")
    assert asked.headers["x-ms-client-request-id"] == "mine-1"
    etag = asked.headers["etag"]
    polled = admin.get(name, **mine, x_ms_return_client_request_id="true", if_none_match=etag)
    assert (polled.status, polled.headers["x-ms-client-request-id"]) == (304, "mine-1")
    assert "x-ms-client-request-id" not in admin.get(name, **mine, if_none_match=etag).headers


@pytest.mark.parametrize("method", ["PATCH", "POST", "HEAD", "OPTIONS"])
def test_unsupported_method_on_node_is_refused_with_allow_header(admin: Api, name: str, method: str) -> None:
    refused = admin.ask(method, admin.path(name))

    assert refused.status == 405
    assert refused.headers["allow"] == "GET, PUT, DELETE"
    assert refused.headers["x-ms-error-code"] == "HttpMethodNotAllowed"


def test_lists_accept_only_get_and_actions_accept_only_post(admin: Api, name: str) -> None:
    for answer, allowed in (
        (admin.ask("PUT", admin.path(), {}), "GET"),
        (admin.ask("GET", admin.path(name, "listCredentials")), "POST"),
    ):
        answer.assert_refused(405, "HttpMethodNotAllowed")
        assert answer.headers["allow"] == allowed


def test_body_must_be_json(admin: Api, name: str) -> None:
    refused = admin.put(name, {"properties": {}}, content_type="application/yaml")
    refused.assert_refused(415, "UnsupportedMediaType")
    assert admin.put(name, {"properties": {}}, content_type="application/json; charset=utf-8").status == 201


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b'"text"',
        b"null",
        b'{"properties": NaN}',
        b'{"properties":{"nodeConfig":{"kubelet":{"extraConfig":{"a":1e999}}}}}',
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"a":' * 40 + b"1" + b"}" * 40,
        b'{"properties":{"nodeConfig":{"labels":{"a":"\\ud800"}}}}',
        b'{"properties":{"nodeConfig":{"kubelet":{"extraConfig":{"\\udfff":1}}}}}',
        b'{"properties":{"nodeConfig":{"maxPods":' + b"9" * 5000 + b"}}}",
    ],
    ids=lambda content: content[:30].decode(errors="replace"),
)
def test_body_that_is_not_a_valid_json_object_is_refused(admin: Api, name: str, content: bytes) -> None:
    admin.ask("PUT", admin.path(name), content).assert_refused(400, "InvalidRequestContent")


def test_body_may_have_a_mebibyte(admin: Api, name: str) -> None:
    largest = b'{"properties": {}}'.ljust(1 << 20)

    assert admin.put(name, largest).status == 201
    admin.put(name, largest + b" ").assert_refused(413, "RequestEntityTooLarge")


def test_put_accepts_resource_as_returned_by_get(admin: Api, name: str) -> None:
    admin.put(name, principal(nodeConfig={"maxPods": 20}), url=True)
    shown = admin.get(name).json

    again = admin.put(name, shown)

    assert again.status == 200
    assert again.properties["nodeConfig"] == {"maxPods": 20}
    assert again.properties["configVersion"] != shown["properties"]["configVersion"]


def test_put_with_read_only_provisioning_state_is_refused(admin: Api, name: str) -> None:
    admin.put(name, {"properties": {"provisioningState": "Deleting"}}).assert_refused(
        400, "InvalidRequestContent", "properties.provisioningState"
    )


def test_non_boolean_query_flag_is_refused(admin: Api, name: str) -> None:
    query = {"api-version": API_VERSION, "configUrl": "perhaps"}

    admin.ask("PUT", admin.path(name), {}, query=query).assert_refused(400, "InvalidQueryParameterValue", "configUrl")
    assert admin.get(name).status == 404


def test_responses_have_cache_control_no_store(admin: Api, name: str) -> None:
    for answer in (admin.put(name, token(), url=True), admin.get(name), admin.list(), admin.get("not-there")):
        assert answer.headers["cache-control"] == "no-store"


def test_operations_list_contains_all_node_operations(admin: Api) -> None:
    listed = admin.ask("GET", "/providers/microsoft.containerService/operations")

    assert listed.status == 200
    names = {each["name"].partition("managedClusters/")[2] for each in listed.json["value"]}
    assert names == {
        "flexNodeConfig/read",
        "flexNodeConfig/write",
        "flexNodeConfig/delete",
        "flexNodeConfig/regenerateToken/action",
        "flexNodeConfig/listConfigUrl/action",
        "flexNodeConfig/reportStatus/action",
        "flexNodeConfig/listCredentials/action",
        "flexNodeConfig/rotateKey/action",
        "flexNodeConfig/revokeKey/action",
        "flexNodeConfig/release/action",
        "flexNodePools/read",
        "flexNodePools/write",
        "flexNodePools/delete",
        "flexNodePools/apply/action",
        "flexNodePools/enrolments/read",
        "flexNodePools/enrolments/write",
        "flexNodePools/rollouts/read",
        "flexNodePools/rollouts/write",
    }
    assert admin.as_somebody("").ask("GET", "/providers/Microsoft.ContainerService/operations").status == 401


def test_request_without_token_is_unauthenticated(admin: Api, name: str) -> None:
    admin.put(name)
    nobody = admin.as_somebody("")

    for answer in (nobody.get(name), nobody.put(name), nobody.list(), nobody.get(name, if_none_match="*")):
        answer.assert_refused(401, "AuthenticationFailed")
        assert answer.headers["www-authenticate"].startswith("Bearer ")


def test_invalid_token_is_refused_and_not_echoed(admin: Api, tenant: Tenant, name: str) -> None:
    wrong = {
        "Bearer aksflex_admin_" + "x" * 43: "InvalidAuthenticationToken",
        "Bearer not.a.token": "InvalidAuthenticationToken",
        "Basic dXNlcjpwYXNz": "AuthenticationFailed",
        tenant.application(callers.OWNER, exp=1_700_000_000): "ExpiredAuthenticationToken",
        tenant.application(callers.OWNER, aud="https://graph.microsoft.com"): "InvalidAuthenticationTokenAudience",
        # The service could use it in Azure.
        tenant.application(callers.OWNER, aud="https://management.azure.com"): "InvalidAuthenticationTokenAudience",
        tenant.application(callers.OWNER, tid=callers.STRANGER): "InvalidAuthenticationTokenTenant",
    }
    for authorization, code in wrong.items():
        refused = admin.as_somebody(authorization).get(name)
        refused.assert_refused(401, code)
        assert not code.endswith("Audience") or 'resource="api://aks-flex-rp"' in refused.headers["www-authenticate"]
        assert authorization.partition(" ")[2] not in json.dumps([refused.text, dict(refused.headers)])
