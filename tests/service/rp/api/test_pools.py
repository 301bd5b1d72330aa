"""Tests of pools over HTTP: revisions, nodes and their effective properties, apply, deletion."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest

from tests.service.rp.api import callers
from tests.service.rp.api.bodies import client_of, principal
from tests.service.rp.api.client import API_VERSION
from tests.service.rp.api.fake_clusters import CLUSTER_VERSION, NOWHERE

if TYPE_CHECKING:
    from tests.service.rp.api.client import Api
    from tests.service.rp.api.traffic_recorder import Answer

numbers = count(1)
SECOND = {"nodeConfig": {"labels": {"site": "oslo", "line": "2"}, "maxPods": 60}}
FIRST = {"nodeConfig": {"labels": {"site": "oslo", "line": "1"}, "maxPods": 50}}


@dataclass(frozen=True)
class PoolClient:
    """A pool, as a caller sees it."""

    api: Api
    name: str

    def put(self, template: Any = None, headers: dict[str, str] | None = None, **more: Any) -> Answer:
        body = {"properties": {**({} if template is None else {"template": template}), **more}}
        return self.api.pool("PUT", self.name, body=body, headers=headers)

    def get(self, *below: str) -> Answer:
        return self.api.pool("GET", self.name, *below)

    def delete(self, **headers: str) -> Answer:
        return self.api.pool("DELETE", self.name, headers=headers)

    def apply(self, **body: Any) -> Answer:
        return self.api.pool("POST", self.name, "apply", body=body)

    def member(self, node: str, **properties: Any) -> Answer:
        """Writes a node of the pool."""
        return self.api.put(node, {"properties": {"poolName": self.name, **properties}})

    def node(self, name: str) -> Any:
        return self.api.get(name).properties

    @property
    def properties(self) -> Any:
        return self.get().properties


@pytest.fixture
def pool(admin: Api) -> PoolClient:
    return PoolClient(admin, f"p{next(numbers)}")


def test_pool_is_created_and_shown(pool: PoolClient) -> None:
    made = pool.put(FIRST, description="Pumps")
    assert made.status == 201
    found = pool.get()
    assert found.json == made.json
    assert found.headers["etag"] == found.json["etag"]
    assert found.json["id"] == pool.api.cluster.pool(pool.name)
    assert found.json["type"] == "Microsoft.ContainerService/managedClusters/flexNodePools"
    assert found.json["systemData"]["createdBy"]
    assert found.properties == {
        "provisioningState": "Succeeded",
        "description": "Pumps",
        "template": FIRST,
        "revision": 1,
        "nodeCount": 0,
        "pendingNodeCount": 0,
        "stableRevision": 1,
        "barredRevisions": [],
    }
    listed = pool.api.pages(pool.api.pool("GET"))
    assert pool.name in [each["name"] for page in listed for each in page.json["value"]]


def test_changed_template_is_a_revision_and_unchanged_is_none(pool: PoolClient) -> None:
    etag = pool.put(FIRST).json["etag"]
    assert pool.put(FIRST).json["etag"] == etag
    described = pool.put(FIRST, description="new")
    assert (described.properties["revision"], described.json["etag"] == etag) == (1, False)
    assert pool.put(SECOND).properties["revision"] == 2
    newest, oldest = pool.get("revisions").json["value"]
    assert (newest["name"], oldest["name"]) == ("2", "1")
    shown = newest["properties"]
    assert shown["template"] == SECOND
    assert shown["changes"] == [
        {"path": "nodeConfig.labels.line", "before": "1", "after": "2"},
        {"path": "nodeConfig.maxPods", "before": 50, "after": 60},
    ]
    assert shown["author"]
    assert shown["createdAt"]
    assert pool.get("revisions", "1").json == oldest
    pool.get("revisions", "3").assert_refused(404, "RevisionNotFound")


def test_revisions_are_listed_in_pages(admin: Api, pool: PoolClient) -> None:
    for number in range(1, 4):
        pool.put({"nodeConfig": {"maxPods": number}})
    path = f"{admin.cluster.pool(pool.name)}/revisions"
    page = admin.ask("GET", path, query={"api-version": API_VERSION, "$top": "2"})
    assert [each["name"] for each in page.json["value"]] == ["3", "2"]
    rest = admin.ask("GET", page.json["nextLink"].removeprefix(admin.connection.url), query={})
    assert [each["name"] for each in rest.json["value"]] == ["1"]
    assert "nextLink" not in rest.json


def test_etags_guard_writes_of_a_pool(pool: PoolClient) -> None:
    etag = pool.put(FIRST).json["etag"]
    for status, guard in ((412, {"If-None-Match": "*"}), (412, {"If-Match": '"1"'}), (200, {"If-Match": etag})):
        assert pool.put(SECOND, guard).status == status
    assert pool.delete(**{"If-Match": etag}).status == 412


def test_node_has_the_template_and_overrides_it(pool: PoolClient, name: str) -> None:
    taint = {"key": "a", "value": "pool", "effect": "NoSchedule"}
    more = {"taints": [taint], "kubelet": {"verbosity": 3}}
    pool.put({"nodeConfig": {**FIRST["nodeConfig"], **more}, "versions": {"containerd": "2.4.1"}})
    own = {"labels": {"line": "7"}, "taints": [{**taint, "value": "node"}, {**taint, "effect": "NoExecute"}]}
    made = pool.member(name, nodeConfig=own)
    assert made.status == 201
    shown = made.properties
    assert (shown["poolName"], shown["poolRevision"], shown["nodeConfig"]) == (pool.name, 1, own)
    node = shown["config"]["node"]
    assert node["labels"] == shown["effective"]["nodeConfig"]["labels"] == {"site": "oslo", "line": "7"}
    assert (node["maxPods"], node["kubelet"]["verbosity"]) == (50, 3)
    assert [each["value"] for each in node["taints"]] == ["node", "pool"]
    assert shown["config"]["containerd"]["version"] == "2.4.1"
    origins = {
        "nodeConfig.labels.line": "node",
        "nodeConfig.labels.site": "pool",
        "nodeConfig.taints['a:NoSchedule']": "node",
        "versions.containerd": "pool",
        "versions.kubernetes": "default",
    }
    assert shown["origins"].items() >= origins.items()
    assert pool.properties["nodeCount"] == 1


def test_template_reaches_nodes_only_by_apply(pool: PoolClient, name: str) -> None:
    pool.put(FIRST)
    pool.member(name)
    before = pool.node(name)
    pool.put(SECOND)
    assert pool.node(name) == before
    assert pool.properties["pendingNodeCount"] == 1
    written = pool.member(name, nodeConfig={"labels": {"own": "1"}}).properties
    assert (written["poolRevision"], written["config"]["node"]["maxPods"]) == (1, 50)

    assert pool.apply().json == {"revision": 2, "applied": [name], "unchanged": [], "refused": []}
    after = pool.node(name)
    assert (after["poolRevision"], after["config"]["node"]["maxPods"]) == (2, 60)
    assert after["config"]["node"]["labels"] == {"site": "oslo", "line": "2", "own": "1"}
    assert int(after["configVersion"]) > int(written["configVersion"])
    assert pool.apply().json == {"revision": 2, "applied": [], "unchanged": [name], "refused": []}
    assert pool.node(name) == after
    assert pool.properties["pendingNodeCount"] == 0
    new = f"{name}-new"
    assert pool.member(new).properties["poolRevision"] == 2

    assert pool.apply(revision=1, nodeNames=[name.upper()]).json["applied"] == [name.upper()]
    assert (pool.node(name)["poolRevision"], pool.node(new)["poolRevision"]) == (1, 2)
    events = pool.api.events(name)
    assert [each["detail"].get("poolRevision") for each in events][:2] == [1, 2]


def test_apply_without_a_change_for_the_machine_keeps_the_version(pool: PoolClient, name: str) -> None:
    pool.put(FIRST)
    made = pool.member(name, nodeConfig={"maxPods": 70, "labels": {"line": "own"}})
    pool.put(SECOND)
    assert pool.apply().json["applied"] == [name]
    found = pool.api.get(name)
    assert (found.json["etag"], found.properties["poolRevision"]) == (made.json["etag"], 2)


def test_apply_names_nodes_that_it_cannot_change(pool: PoolClient, name: str) -> None:
    own, alone, missing = f"{name}-own", f"{name}-alone", f"{name}-none"
    pool.put({"versions": {"kubernetes": CLUSTER_VERSION}})
    pool.member(name)
    pool.member(own, versions={"kubernetes": CLUSTER_VERSION})
    pool.api.put(alone)
    pool.put({"versions": {"kubernetes": "1.33.1"}})
    result = pool.apply().json
    assert result["applied"] == [own]
    [refused] = result["refused"]
    assert (refused["name"], refused["error"]["target"]) == (name, "properties.versions.kubernetes")
    assert "older than the current version" in refused["error"]["message"]
    assert pool.node(name)["poolRevision"] == 1

    errors = pool.apply(nodeNames=[alone, missing]).json["refused"]
    assert {each["name"]: each["error"]["code"] for each in errors} == {
        alone: "NodeNotInPool",
        missing: "ResourceNotFound",
    }
    assert pool.apply(allowDowngrade=True).json["applied"] == [name]
    assert pool.node(name)["config"]["kubernetes"]["version"] == "1.33.1"


@pytest.mark.parametrize(
    ("body", "target"),
    [
        ({"revision": 0}, "revision"),
        ({"revision": "1"}, "revision"),
        ({"revision": True}, "revision"),
        ({"nodeNames": "edge-1"}, "nodeNames"),
        ({"nodeNames": [1]}, "nodeNames[0]"),
        ({"nodes": []}, "nodes"),
        ({"allowDowngrade": "yes"}, "allowDowngrade"),
        ({"overrideRollout": True, "nodeNames": []}, "overrideRollout"),
    ],
)
def test_apply_refuses_a_wrong_body(pool: PoolClient, body: dict[str, Any], target: str) -> None:
    pool.put(FIRST)
    pool.apply(**body).assert_refused(400, "InvalidRequestContent", target)


def test_node_moves_between_pools(pool: PoolClient, name: str) -> None:
    other = replace(pool, name=f"{pool.name}b")
    pool.put(FIRST)
    other.put(FIRST)
    other.put(SECOND)
    pool.member(name)
    moved = other.member(name).properties
    assert (moved["poolName"], moved["poolRevision"], moved["config"]["node"]["maxPods"]) == (other.name, 2, 60)
    alone = pool.api.put(name).properties
    assert ("poolRevision" in alone, alone["config"]["node"]["maxPods"]) == (False, 110)
    assert [each.properties["nodeCount"] for each in (pool, other)] == [0, 0]


def test_node_of_a_missing_pool_is_refused(admin: Api, name: str) -> None:
    refused = PoolClient(admin, "nowhere").member(name)
    refused.assert_refused(400, "InvalidRequestContent", "properties.poolName")
    assert "has no pool 'nowhere'" in refused.error["message"]


def test_pool_with_nodes_is_not_deleted(pool: PoolClient, name: str) -> None:
    pool.put(FIRST)
    pool.member(name)
    refused = pool.delete()
    refused.assert_refused(409, "PoolHasNodes")
    assert f"has 1 node: {name}." in refused.error["message"]
    pool.api.put(name)
    assert [pool.delete().status for _ in range(2)] == [200, 204]
    pool.get().assert_refused(404, "PoolNotFound")


@pytest.mark.parametrize("name_text", ["1a", "a-b", "abcdefghijklm", "ä", "a.b"])
def test_invalid_names_are_refused(admin: Api, name_text: str) -> None:
    PoolClient(admin, name_text).put(FIRST).assert_refused(400, "InvalidResourceName")


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
        ({"azureAuth": principal()["properties"]["azureAuth"]}, "azureAuth.servicePrincipal"),
        ({"nodeConfig": {"labels": {f"k{n}": "v" * 60 for n in range(1200)}}}, ""),
    ],
)
def test_invalid_templates_are_refused(pool: PoolClient, template: Any, target: str) -> None:
    target = f"properties.template.{target}".rstrip(".")
    pool.put(template).assert_refused(400, "InvalidRequestContent", target)
    assert pool.get().status == 404


def test_nodes_of_an_arc_pool_have_identities_of_their_own(pool: PoolClient, name: str) -> None:
    pool.put({"azureAuth": {"method": "arc", "arc": {"location": "westeurope"}}, "continuousMonitoring": True})
    for node in (f"{name}-1", f"{name}-2"):
        assert pool.member(node).properties["config"]["azure"]["arc"]["machineName"] == node
    own = pool.member(f"{name}-3", **principal(client_of(name))["properties"])
    assert own.status == 201
    assert "arc" not in own.properties["config"]["azure"]


def test_filter_finds_nodes_by_pool_and_inherited_label(pool: PoolClient, name: str) -> None:
    of, labelled = f"poolName eq '{pool.name}'", f"labels/only eq '{pool.name}'"
    pool.put({"nodeConfig": {"labels": {"only": pool.name}}})
    pool.member(name)
    for text, found in {
        of: [name],
        labelled: [name],
        f"{of} and labels/only ne 'x'": [name],
        f"{of} and labels/only eq 'x'": [],
    }.items():
        assert [each["name"] for each in pool.api.list(filter=text).json["value"]] == found


def test_token_of_a_node_keeps_its_pool(pool: PoolClient, name: str) -> None:
    pool.put(FIRST)
    pool.member(name)
    pool.put(SECOND)
    assert pool.api.regenerate(name).status == 200
    found = pool.node(name)
    assert (found["poolName"], found["poolRevision"], found["config"]["node"]["maxPods"]) == (pool.name, 1, 50)


def test_pools_of_an_unknown_cluster(admin: Api, pool: PoolClient) -> None:
    replace(pool, api=admin.at(NOWHERE)).put(FIRST).assert_refused(404, "ParentResourceNotFound")


def test_methods_and_paths_of_pools(admin: Api, pool: PoolClient) -> None:
    assert admin.pool("POST", pool.name).status == 405
    assert pool.get("apply").status == 405
    assert admin.pool("PUT", pool.name, "revisions", body={}).status == 405
    assert pool.get("others").status == 404
    pool.apply().assert_refused(404, "PoolNotFound")
