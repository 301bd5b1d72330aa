"""Tests of pools over HTTP: revisions, nodes and their effective properties, apply, deletion, roles."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any

import pytest

from tests.service.rp.api import callers
from tests.service.rp.api.bodies import client_of, principal
from tests.service.rp.api.client import API_VERSION
from tests.service.rp.api.fake_clusters import CLUSTER_VERSION, NEIGHBOUR, NOWHERE
from tests.service.rp.api.test_arm import assert_refused

if TYPE_CHECKING:
    from tests.service.rp.api.client import Api
    from tests.service.rp.api.service_harness import Running
    from tests.service.rp.api.tenants import Tenant
    from tests.service.rp.api.traffic_recorder import Answer

numbers = count(1)
SECOND = {"nodeConfig": {"labels": {"site": "oslo", "line": "2"}, "maxPods": 60}}
FIRST = {"nodeConfig": {"labels": {"site": "oslo", "line": "1"}, "maxPods": 50}}


@pytest.fixture
def pool() -> str:
    return f"p{next(numbers)}"


@pytest.fixture
def contributor(service: Running, tenant: Tenant) -> Api:
    return service.admin.as_somebody(tenant.application(callers.CONTRIBUTOR))


@pytest.fixture
def reader(service: Running, tenant: Tenant) -> Api:
    return service.admin.as_somebody(tenant.application(callers.READER))


def put(api: Api, pool: str, template: Any = None, headers: dict[str, str] | None = None, **more: Any) -> Answer:
    body = {"properties": {**({} if template is None else {"template": template}), **more}}
    return api.pool("PUT", pool, body=body, headers=headers)


def get(api: Api, *below: str) -> Answer:
    return api.pool("GET", *below)


def apply(api: Api, pool: str, body: Any = None) -> Answer:
    return api.pool("POST", pool, "apply", body=body)


def member(api: Api, name: str, pool: str, **properties: Any) -> Answer:
    return api.put(name, {"properties": {"poolName": pool, **properties}})


def shown(api: Api, name: str) -> dict[str, Any]:
    properties: dict[str, Any] = api.get(name).json["properties"]
    return properties


def test_pool_is_created_and_shown(admin: Api, pool: str) -> None:
    made = put(admin, pool, FIRST, description="Pumps")
    assert made.status == 201
    found = get(admin, pool)
    assert found.json == made.json
    assert found.headers["etag"] == found.json["etag"]
    assert found.json["id"] == admin.cluster.pool(pool)
    assert found.json["type"] == "Microsoft.ContainerService/managedClusters/flexNodePools"
    assert found.json["systemData"]["createdBy"]
    assert found.json["properties"] == {
        "provisioningState": "Succeeded",
        "description": "Pumps",
        "template": FIRST,
        "revision": 1,
        "nodeCount": 0,
        "pendingNodeCount": 0,
        "stableRevision": 1,
        "barredRevisions": [],
    }
    assert pool in [each["name"] for each in get(admin).json["value"]]


def test_changed_template_is_a_revision_and_unchanged_is_none(admin: Api, pool: str) -> None:
    first = put(admin, pool, FIRST)
    assert put(admin, pool, FIRST).json["etag"] == first.json["etag"]
    described = put(admin, pool, FIRST, description="new")
    assert described.json["properties"]["revision"] == 1
    assert described.json["etag"] != first.json["etag"]
    assert put(admin, pool, SECOND).json["properties"]["revision"] == 2
    revisions = get(admin, pool, "revisions").json["value"]
    assert [each["name"] for each in revisions] == ["2", "1"]
    newest = revisions[0]["properties"]
    assert newest["template"] == SECOND
    assert newest["changes"] == [
        {"path": "nodeConfig.labels.line", "before": "1", "after": "2"},
        {"path": "nodeConfig.maxPods", "before": 50, "after": 60},
    ]
    assert newest["author"]
    assert newest["createdAt"]
    assert get(admin, pool, "revisions", "1").json == revisions[1]
    assert_refused(get(admin, pool, "revisions", "3"), 404, "RevisionNotFound")


def test_revisions_are_listed_in_pages(admin: Api, pool: str) -> None:
    for number in range(1, 4):
        put(admin, pool, {"nodeConfig": {"maxPods": number}})
    page = admin.ask("GET", f"{admin.cluster.pool(pool)}/revisions", query={"api-version": API_VERSION, "$top": "2"})
    assert [each["name"] for each in page.json["value"]] == ["3", "2"]
    rest = admin.ask("GET", page.json["nextLink"].removeprefix(admin.connection.url), query={})
    assert [each["name"] for each in rest.json["value"]] == ["1"]
    assert "nextLink" not in rest.json


def test_etags_guard_writes_of_a_pool(admin: Api, pool: str) -> None:
    etag = put(admin, pool, FIRST).json["etag"]
    assert put(admin, pool, SECOND, {"If-None-Match": "*"}).status == 412
    assert put(admin, pool, SECOND, {"If-Match": '"1"'}).status == 412
    assert put(admin, pool, SECOND, {"If-Match": etag}).status == 200
    assert admin.pool("DELETE", pool, headers={"If-Match": etag}).status == 412


def test_node_has_the_template_and_overrides_it(admin: Api, pool: str, name: str) -> None:
    taint = {"key": "a", "value": "pool", "effect": "NoSchedule"}
    more = {"taints": [taint], "kubelet": {"verbosity": 3}}
    put(admin, pool, {"nodeConfig": {**FIRST["nodeConfig"], **more}, "versions": {"containerd": "2.4.1"}})
    own = {"labels": {"line": "7"}, "taints": [{**taint, "value": "node"}, {**taint, "effect": "NoExecute"}]}
    made = member(admin, name, pool, nodeConfig=own)
    assert made.status == 201
    properties = made.json["properties"]
    assert (properties["poolName"], properties["poolRevision"], properties["nodeConfig"]) == (pool, 1, own)
    node = properties["config"]["node"]
    assert node["labels"] == {"site": "oslo", "line": "7"}
    assert node["maxPods"] == 50
    assert [each["value"] for each in node["taints"]] == ["node", "pool"]
    assert node["kubelet"]["verbosity"] == 3
    assert properties["config"]["containerd"]["version"] == "2.4.1"
    assert properties["effective"]["nodeConfig"]["labels"] == {"site": "oslo", "line": "7"}
    origins = properties["origins"]
    assert origins["nodeConfig.labels.line"] == "node"
    assert origins["nodeConfig.labels.site"] == "pool"
    assert origins["nodeConfig.taints['a:NoSchedule']"] == "node"
    assert origins["versions.containerd"] == "pool"
    assert origins["versions.kubernetes"] == "default"
    assert get(admin, pool).json["properties"]["nodeCount"] == 1


def test_template_reaches_nodes_only_by_apply(admin: Api, pool: str, name: str) -> None:
    put(admin, pool, FIRST)
    member(admin, name, pool)
    before = shown(admin, name)
    put(admin, pool, SECOND)
    assert shown(admin, name) == before
    assert get(admin, pool).json["properties"]["pendingNodeCount"] == 1
    written = member(admin, name, pool, nodeConfig={"labels": {"own": "1"}})
    assert written.json["properties"]["poolRevision"] == 1
    assert written.json["properties"]["config"]["node"]["maxPods"] == 50

    assert apply(admin, pool).json == {"revision": 2, "applied": [name], "unchanged": [], "refused": []}
    after = shown(admin, name)
    assert after["poolRevision"] == 2
    assert after["config"]["node"]["maxPods"] == 60
    assert after["config"]["node"]["labels"] == {"site": "oslo", "line": "2", "own": "1"}
    assert int(after["configVersion"]) > int(written.json["properties"]["configVersion"])
    assert apply(admin, pool).json == {"revision": 2, "applied": [], "unchanged": [name], "refused": []}
    assert shown(admin, name) == after
    assert get(admin, pool).json["properties"]["pendingNodeCount"] == 0
    new = f"{name}-new"
    assert member(admin, new, pool).json["properties"]["poolRevision"] == 2

    assert apply(admin, pool, {"revision": 1, "nodeNames": [name.upper()]}).json["applied"] == [name.upper()]
    assert (shown(admin, name)["poolRevision"], shown(admin, new)["poolRevision"]) == (1, 2)
    events = admin.audit(name).json["value"]
    assert [each["detail"].get("poolRevision") for each in events][:2] == [1, 2]


def test_apply_without_a_change_for_the_machine_keeps_the_version(admin: Api, pool: str, name: str) -> None:
    put(admin, pool, FIRST)
    made = member(admin, name, pool, nodeConfig={"maxPods": 70, "labels": {"line": "own"}})
    put(admin, pool, SECOND)
    assert apply(admin, pool).json["applied"] == [name]
    found = admin.get(name).json
    assert (found["etag"], found["properties"]["poolRevision"]) == (made.json["etag"], 2)


def test_apply_names_nodes_that_it_cannot_change(admin: Api, pool: str, name: str) -> None:
    put(admin, pool, {"versions": {"kubernetes": CLUSTER_VERSION}})
    member(admin, name, pool)
    member(admin, f"{name}-own", pool, versions={"kubernetes": CLUSTER_VERSION})
    admin.put(f"{name}-alone")
    put(admin, pool, {"versions": {"kubernetes": "1.33.1"}})
    result = apply(admin, pool).json
    assert result["applied"] == [f"{name}-own"]
    [refused] = result["refused"]
    assert refused["name"] == name
    assert refused["error"]["target"] == "properties.versions.kubernetes"
    assert "older than the current version" in refused["error"]["message"]
    assert shown(admin, name)["poolRevision"] == 1

    names = {"nodeNames": [f"{name}-alone", f"{name}-none"]}
    errors = {each["name"]: each["error"]["code"] for each in apply(admin, pool, names).json["refused"]}
    assert errors == {f"{name}-alone": "NodeNotInPool", f"{name}-none": "ResourceNotFound"}
    assert apply(admin, pool, {"allowDowngrade": True}).json["applied"] == [name]
    assert shown(admin, name)["config"]["kubernetes"]["version"] == "1.33.1"


@pytest.mark.parametrize(
    ("body", "target"),
    [
        ({"revision": 0}, "revision"),
        ({"revision": "1"}, "revision"),
        ({"revision": True}, "revision"),
        ({"nodeNames": "edge-1"}, "nodeNames"),
        ({"nodeNames": [1]}, "nodeNames"),
        ({"nodes": []}, "nodes"),
        ({"allowDowngrade": "yes"}, "allowDowngrade"),
    ],
)
def test_apply_refuses_a_wrong_body(admin: Api, pool: str, body: Any, target: str) -> None:
    put(admin, pool, FIRST)
    assert_refused(apply(admin, pool, body), 400, "InvalidRequestContent")
    assert apply(admin, pool, body).error["target"] == target


def test_node_moves_between_pools(admin: Api, pool: str, name: str) -> None:
    other = f"{pool}b"
    put(admin, pool, FIRST)
    put(admin, other, FIRST)
    put(admin, other, SECOND)
    member(admin, name, pool)
    moved = member(admin, name, other).json["properties"]
    assert (moved["poolName"], moved["poolRevision"], moved["config"]["node"]["maxPods"]) == (other, 2, 60)
    alone = admin.put(name).json["properties"]
    assert "poolRevision" not in alone
    assert alone["config"]["node"]["maxPods"] == 110
    assert [get(admin, each).json["properties"]["nodeCount"] for each in (pool, other)] == [0, 0]


def test_node_of_a_missing_pool_is_refused(admin: Api, name: str) -> None:
    refused = member(admin, name, "nowhere")
    assert_refused(refused, 400, "InvalidRequestContent")
    assert refused.error["target"] == "properties.poolName"
    assert "has no pool 'nowhere'" in refused.error["message"]


def test_pool_with_nodes_is_not_deleted(admin: Api, pool: str, name: str) -> None:
    put(admin, pool, FIRST)
    member(admin, name, pool)
    refused = admin.pool("DELETE", pool)
    assert_refused(refused, 409, "PoolHasNodes")
    assert f"has 1 node: {name}." in refused.error["message"]
    admin.put(name)
    assert admin.pool("DELETE", pool).status == 200
    assert admin.pool("DELETE", pool).status == 204
    assert_refused(get(admin, pool), 404, "PoolNotFound")


@pytest.mark.parametrize("name_text", ["1a", "a-b", "abcdefghijklm", "ä", "a.b"])
def test_invalid_names_are_refused(admin: Api, name_text: str) -> None:
    assert_refused(put(admin, name_text, FIRST), 400, "InvalidResourceName")


@pytest.mark.parametrize(
    ("template", "target"),
    [
        ({"nodeConfig": {"maxPods": 0}}, "nodeConfig.maxPods"),
        ({"nodeConfig": {"labels": {"kubernetes.io/role": "x"}}}, "nodeConfig.labels['kubernetes.io/role']"),
        ({"versions": {"kubernetes": "1.99.0"}}, "versions.kubernetes"),
        ({"poolName": "other"}, "poolName"),
        ({"azureAuth": {"method": "arc", "arc": {"principalId": callers.NODE}}}, "azureAuth.arc.principalId"),
        ({"azureAuth": {"method": "arc", "arc": {"machineName": "m"}}}, "azureAuth.arc.machineName"),
        (
            {"azureAuth": {"method": "managedIdentity", "managedIdentity": {"clientId": callers.NODE}}},
            "azureAuth.managedIdentity.clientId",
        ),
        (
            {"azureAuth": principal()["properties"]["azureAuth"]},
            "azureAuth.servicePrincipal",
        ),
        ({"nodeConfig": {"labels": {f"k{n}": "v" * 60 for n in range(1200)}}}, ""),
    ],
)
def test_invalid_templates_are_refused(admin: Api, pool: str, template: Any, target: str) -> None:
    refused = put(admin, pool, template)
    assert_refused(refused, 400, "InvalidRequestContent")
    assert refused.error["target"] == f"properties.template.{target}".rstrip(".")
    assert get(admin, pool).status == 404


def test_nodes_of_an_arc_pool_have_identities_of_their_own(admin: Api, pool: str, name: str) -> None:
    arc = {"method": "arc", "arc": {"location": "westeurope"}}
    put(admin, pool, {"azureAuth": arc, "continuousMonitoring": True})
    for number in (1, 2):
        made = member(admin, f"{name}-{number}", pool)
        assert made.status == 201
        assert made.json["properties"]["config"]["azure"]["arc"]["machineName"] == f"{name}-{number}"
    own = member(admin, f"{name}-3", pool, **principal(client_of(name))["properties"])
    assert own.status == 201
    assert "arc" not in own.json["properties"]["config"]["azure"]


def test_filter_finds_nodes_by_pool_and_inherited_label(admin: Api, pool: str, name: str) -> None:
    put(admin, pool, {"nodeConfig": {"labels": {"only": pool}}})
    member(admin, name, pool)
    for text in (f"poolName eq '{pool}'", f"labels/only eq '{pool}'", f"poolName eq '{pool}' and labels/only ne 'x'"):
        assert [each["name"] for each in admin.list(filter=text).json["value"]] == [name]
    assert admin.list(filter=f"poolName eq '{pool}' and labels/only eq 'x'").json["value"] == []


def test_token_of_a_node_keeps_its_pool(admin: Api, pool: str, name: str) -> None:
    put(admin, pool, FIRST)
    member(admin, name, pool)
    put(admin, pool, SECOND)
    assert admin.regenerate(name).status == 200
    found = shown(admin, name)
    assert (found["poolRevision"], found["config"]["node"]["maxPods"]) == (1, 50)
    assert found["nodeConfig" if "nodeConfig" in found else "poolName"] == pool


def test_roles_of_pools(reader: Api, contributor: Api, pool: str) -> None:
    assert_refused(put(reader, pool, FIRST), 403, "AuthorizationFailed")
    assert put(contributor, pool, FIRST).status == 201
    assert get(reader, pool).status == 200
    assert get(reader, pool, "revisions").status == 200
    assert_refused(apply(reader, pool), 403, "AuthorizationFailed")
    assert "flexNodePools/apply/action" in apply(reader, pool).error["message"]
    assert apply(contributor, pool).status == 200
    assert_refused(reader.pool("DELETE", pool), 403, "AuthorizationFailed")
    assert_refused(get(reader.at(NEIGHBOUR), pool), 403, "AuthorizationFailed")


def test_contributor_cannot_set_trust_for_a_whole_pool(
    service: Running, admin: Api, contributor: Api, pool: str, name: str
) -> None:
    """A contributor names an own mirror in a template, and the program from there runs as root on all nodes."""
    bad = {"nodeConfig": {"artifacts": {"baseURL": "https://mirror.example"}}}
    refused = put(contributor, pool, bad)
    assert_refused(refused, 403, "AuthorizationFailed")
    assert refused.error["target"] == "properties.template.nodeConfig.artifacts"
    assert put(admin, pool, bad).status == 201
    both = {"nodeConfig": {**bad["nodeConfig"], "maxPods": 50}}
    assert put(contributor, pool, both).status == 200
    assert member(contributor, name, pool).status == 201
    assert put(contributor, pool, {}).status == 403

    assert put(admin, pool, {}).status == 200
    assert apply(contributor, pool).json["applied"] == [name]
    again = apply(contributor, pool, {"revision": 2})
    assert_refused(again, 403, "AuthorizationFailed")
    assert "artifacts" not in shown(service.admin, name)["config"]


def test_pools_of_an_unknown_cluster(admin: Api, pool: str) -> None:
    assert_refused(put(admin.at(NOWHERE), pool, FIRST), 404, "ParentResourceNotFound")


def test_methods_and_paths_of_pools(admin: Api, pool: str) -> None:
    assert admin.pool("POST", pool).status == 405
    assert admin.pool("GET", pool, "apply").status == 405
    assert admin.pool("PUT", pool, "revisions", body={}).status == 405
    assert admin.pool("GET", pool, "others").status == 404
    assert_refused(apply(admin, "unknownpool"), 404, "PoolNotFound")


def test_contributor_gets_no_exec_by_moving_a_node_to_a_pool(
    service: Running, contributor: Api, pool: str, name: str
) -> None:
    assert put(service.admin, pool, {"kubernetesAuth": {"method": "exec"}}).status == 201
    own = principal()
    assert contributor.put(name, own).status == 201
    moved = {"properties": {**own["properties"], "poolName": pool}}
    assert_refused(contributor.put(name, moved), 403, "AuthorizationFailed")
    assert shown(service.admin, name)["effective"]["kubernetesAuth"] == {"method": "bootstrapToken"}


def test_contributor_keeps_owner_settings_when_moving_a_node(
    service: Running, contributor: Api, pool: str, name: str
) -> None:
    """Without this, a node leaves the settings of an owner by a change of its pool."""
    locked, empty = {"nodeConfig": {"artifacts": {"baseURL": "https://mirror.example/files"}}}, f"{pool}e"
    assert put(service.admin, pool, locked).status == 201
    assert put(contributor, empty, FIRST).status == 201
    assert member(contributor, name, pool).status == 201

    assert_refused(member(contributor, name, empty), 403, "AuthorizationFailed")
    assert_refused(contributor.put(name, {"properties": {}}), 403, "AuthorizationFailed")

    assert member(contributor, name, pool, nodeConfig={"maxPods": 40}).status == 200
    assert put(service.admin, pool, FIRST).status == 200  # the owner removes it
    assert apply(contributor, pool).status == 200
    assert "artifacts" not in shown(service.admin, name)["effective"]["nodeConfig"]
    assert member(contributor, name, empty).status == 200
