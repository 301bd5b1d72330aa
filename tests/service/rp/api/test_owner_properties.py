"""Tests of properties that decide what a node trusts, which only owners can set."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from tests.service.rp.api import callers
from tests.service.rp.api.bodies import principal, token

if TYPE_CHECKING:
    from tests.service.rp.api.client import Api
    from tests.service.rp.api.service_harness import Running
    from tests.service.rp.api.tenants import Tenant

EXEC = {"useAzureAuth": True, "method": "exec"}
TRUSTED: dict[str, dict[str, Any]] = {
    "nodeConfig.artifacts": token(artifacts={"baseURL": "https://mirror.example"}),
    "nodeConfig.registryMirrors": token(registryMirrors={"docker.io": ["https://mirror.example"]}),
    "nodeConfig.kubelet.extraConfig": token(kubelet={"extraConfig": {"featureGates": {"SidecarContainers": True}}}),
    "nodeConfig.kubelet.serverURL": token(kubelet={"serverURL": "https://192.0.2.7:6443"}),
    "kubernetesAuth.method": principal(kubernetesAuth=EXEC),
}
PLAIN = {**{path: token() for path in TRUSTED}, "kubernetesAuth.method": principal()}


@pytest.fixture
def contributor(service: Running, tenant: Tenant) -> Api:
    return service.admin.by(tenant, callers.CONTRIBUTOR)


@pytest.fixture
def owner(service: Running, tenant: Tenant) -> Api:
    return service.admin.by(tenant, callers.OWNER)


@pytest.mark.parametrize("path", TRUSTED)
def test_contributor_cannot_set_what_a_node_trusts(service: Running, contributor: Api, name: str, path: str) -> None:
    """A contributor names an own mirror, raises a version, and the program from there runs as root on the node."""
    refused = contributor.put(name, TRUSTED[path])
    refused.assert_refused(403, "AuthorizationFailed")
    assert f"Only owners of the cluster can set properties.{path}." in refused.error["message"]
    assert refused.error["target"] == f"properties.{path}"
    assert service.admin.get(name).status == 404

    assert contributor.put(name, PLAIN[path]).status == 201
    assert contributor.put(name, TRUSTED[path]).status == 403
    denied = [each for each in service.admin.events(name) if each["outcome"] == "denied"]
    assert [(each["what"], each["detail"]["property"]) for each in denied] == [("update", path), ("create", path)]


@pytest.mark.parametrize("path", TRUSTED)
def test_contributor_can_write_what_an_owner_has_set(owner: Api, contributor: Api, name: str, path: str) -> None:
    assert owner.put(name, TRUSTED[path]).status == 201

    body = {"properties": {**TRUSTED[path]["properties"]}}
    body["properties"]["nodeConfig"] = {**body["properties"].get("nodeConfig", {}), "maxPods": 30}
    assert contributor.put(name, body).status == 200
    assert owner.get(name).properties["nodeConfig"]["maxPods"] == 30


def test_contributor_cannot_remove_or_change_a_mirror(owner: Api, contributor: Api, name: str) -> None:
    owner.put(name, TRUSTED["nodeConfig.artifacts"])
    assert contributor.put(name, token()).status == 403
    assert contributor.put(name, token(artifacts={"baseURL": "https://other.example"})).status == 403
    assert owner.put(name, token()).status == 200


def test_mirror_without_tls_is_refused_and_a_stored_one_is_served(service: Running, owner: Api, name: str) -> None:
    """Everyone between an http mirror and the node chooses what the node downloads."""
    unsafe = token(artifacts={"baseURL": "http://mirror.example"})
    for path in ("nodeConfig.artifacts", ""):
        refused = owner.put(name, unsafe)
        refused.assert_refused(400, "InvalidRequestContent")
        assert "not encrypted" in refused.text
        assert "properties.nodeConfig.artifacts.baseURL" in refused.text
        if path:
            assert owner.put(name, TRUSTED[path]).status == 201

    found = service.node(name)
    stored = replace(found, properties=found.properties | {"nodeConfig": unsafe["properties"]["nodeConfig"]})
    service.call(service.store.put_node(stored, found.etag))
    assert owner.get(name).properties["nodeConfig"]["artifacts"]["baseURL"] == "http://mirror.example"


def test_contributor_can_move_a_node_from_exec_to_certificate(owner: Api, contributor: Api, name: str) -> None:
    owner.put(name, principal(kubernetesAuth=EXEC))
    safer = principal(kubernetesAuth={"useAzureAuth": True, "method": "certificate"})
    assert contributor.put(name, safer).status == 200
    assert contributor.put(name, principal(kubernetesAuth=EXEC)).status == 403


def test_contributor_cannot_give_an_exec_node_another_identity(owner: Api, contributor: Api, name: str) -> None:
    """The contributor's own application would be bound to the role of exec nodes at its first report."""
    owner.put(name, principal(kubernetesAuth=EXEC))
    contributor.put(name, principal(callers.OTHER_NODE, kubernetesAuth=EXEC)).assert_refused(
        403, "AuthorizationFailed", "properties.azureAuth"
    )

    assert contributor.put(name, principal(secret="canary-Zx82-never-to-be-seen", kubernetesAuth=EXEC)).status == 200
    assert owner.put(name, principal(callers.OTHER_NODE, kubernetesAuth=EXEC)).status == 200
