"""Tests of the access of identities in a cluster: granted, changed, revoked, and restored from the store."""

from __future__ import annotations

import time
from typing import Any

import pytest

from aks_flex_node.api.contract import MANAGED_LABEL
from aks_flex_rp.clusters import access
from aks_flex_rp.clusters.access import IDENTITY_LABEL, AccessController
from aks_flex_rp.clusters.admission_policies import BINDING_PREFIX, kubelet_role
from aks_flex_rp.clusters.client import ApiRefused
from aks_flex_rp.clusters.node_controller import LOST_AFTER_SECONDS, NODES
from aks_flex_rp.clusters.prerequisites import BINDINGS, ROLE_BINDINGS
from aks_flex_rp.join_state import KUBELET_ROLE, AccessMethod, ClusterAccess
from tests.unit.rp.clusters.builders import Heard
from tests.unit.rp.clusters.fakes import FakeApi, refusal

OID, OTHER = "11111111-2222-3333-4444-555555555555", "22222222-2222-3333-4444-555555555555"
EXEC, CERTIFICATE = ClusterAccess(OID, AccessMethod.EXEC), ClusterAccess(OID, AccessMethod.CERTIFICATE)
NODE = f"{NODES}/edge-1"
PATH = f"{BINDINGS}/{BINDING_PREFIX}edge-1"


class Scene:
    def __init__(self, settle: float = 0.0) -> None:
        self.api, self.heard = FakeApi(), Heard()
        self.client = self.api.client()
        self.keeping = AccessController("lab", self.client, self.heard, settle)

    async def grant(self, given: ClusterAccess) -> None:
        await access.grant_access(self.client, "edge-1", given)

    async def restarted(self) -> None:
        """Lists the bindings, as at the start of a watch."""
        items, _ = await self.client.list(BINDINGS, labelSelector=IDENTITY_LABEL)
        await self.keeping.listed(items)

    async def settled(self) -> None:
        """Starts a watch, and lets it clean up."""
        await self.restarted()
        await self.keeping.clean_up()

    def gives(self) -> tuple[str, str] | None:
        binding: dict[str, Any] | None = self.api.objects.get(PATH)
        return (binding["roleRef"]["name"], binding["subjects"][0]["name"]) if binding else None


def test_common_role_bindings_do_not_use_node_binding_prefix() -> None:
    assert not any(one.body["metadata"]["name"].startswith(BINDING_PREFIX) for one in ROLE_BINDINGS)


def test_role_of_exec_nodes_cannot_list_secrets_or_leave_its_kind() -> None:
    """With system:node, an exec node listed every Secret of the cluster."""
    rules = [(set(each["resources"]), set(each["verbs"])) for each in kubelet_role()["rules"]]
    secrets = [verbs for resources, verbs in rules if resources & {"secrets", "configmaps"}]
    assert secrets == [{"get"}]
    assert not any("*" in resources | verbs for resources, verbs in rules)
    assert not any(
        resources & {"clusterroles", "clusterrolebindings", "roles", "rolebindings"} for resources, _ in rules
    )


async def test_identity_is_bound_to_role_required_by_join_method() -> None:
    scene = Scene()
    await scene.grant(EXEC)
    assert scene.gives() == (KUBELET_ROLE, OID)

    await scene.grant(CERTIFICATE)
    assert scene.gives() == ("system:node-bootstrapper", OID)

    await scene.grant(ClusterAccess(OTHER, AccessMethod.CERTIFICATE))
    assert scene.gives() == ("system:node-bootstrapper", OTHER)


async def test_modified_role_binding_is_not_recognized() -> None:
    scene = Scene()
    await scene.grant(EXEC)
    assert access.read_binding(scene.api.objects[PATH]) == EXEC
    assert await access.identity_nodes(scene.client, OID) == ["edge-1"]
    assert await access.identity_nodes(scene.client, OTHER) == []

    more = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "mallory"}
    scene.api.objects[PATH]["subjects"].append(more)
    assert access.read_binding(scene.api.objects[PATH]) is None


async def test_role_binding_with_only_our_label_is_ignored() -> None:
    scene = Scene()
    scene.api.put(
        f"{BINDINGS}/somebodys", {"metadata": {"labels": {IDENTITY_LABEL: OID}}, "roleRef": {"name": "view"}}
    )
    await scene.settled()

    assert f"{BINDINGS}/somebodys" in scene.api.objects
    assert await access.identity_nodes(scene.client, OID) == []


async def test_orphaned_cluster_access_is_withdrawn_and_reported() -> None:
    scene = Scene()
    await scene.grant(EXEC)
    await scene.settled()

    assert scene.gives() is None
    assert scene.heard.told == [("withdrawn", "edge-1")]


async def test_missing_or_modified_role_binding_is_restored() -> None:
    scene = Scene()
    scene.heard.given["edge-1"] = EXEC
    await scene.settled()
    assert scene.gives() == (KUBELET_ROLE, OID)

    changed = scene.api.put(PATH, {**scene.api.objects[PATH], "subjects": []})
    await scene.keeping.changed("MODIFIED", changed)
    await scene.keeping.clean_up()
    assert scene.gives() == (KUBELET_ROLE, OID)


async def test_access_by_a_method_of_another_release_is_left_alone() -> None:
    scene = Scene()
    await scene.grant(EXEC)
    scene.heard.given["edge-1"] = ClusterAccess(OTHER, AccessMethod("later"))
    await scene.settled()

    assert scene.gives() == (KUBELET_ROLE, OID)
    assert scene.heard.told == []


async def test_role_binding_modified_during_restore_is_restored_again() -> None:
    scene = Scene()
    scene.heard.given["edge-1"] = EXEC
    await scene.restarted()
    apply = scene.client.apply

    async def and_somebody_changes_it(path: str, body: dict[str, Any], *, dry: bool = False) -> dict[str, Any]:
        scene.client.apply = apply  # type: ignore[method-assign]
        given = await apply(path, body, dry=dry)
        await scene.keeping.changed("MODIFIED", scene.api.put(PATH, {**scene.api.objects[PATH], "subjects": []}))
        return given

    scene.client.apply = and_somebody_changes_it  # type: ignore[method-assign]
    await scene.keeping.clean_up()
    await scene.keeping.clean_up()
    assert scene.gives() == (KUBELET_ROLE, OID)


async def test_recently_granted_access_is_not_withdrawn() -> None:
    scene = Scene(settle=60)
    await scene.grant(EXEC)
    await scene.settled()

    assert scene.gives() == (KUBELET_ROLE, OID)


async def test_failed_access_withdrawal_of_deleted_node_is_retried() -> None:
    scene = Scene()
    scene.heard.given["edge-1"] = EXEC
    await scene.grant(EXEC)
    await scene.restarted()

    del scene.heard.given["edge-1"]
    scene.keeping.mark_due("edge-1")
    scene.api.answers[f"DELETE {PATH}"] = lambda _: refusal(503, "ServiceUnavailable")
    with pytest.raises(ApiRefused):
        await scene.keeping.clean_up()
    assert scene.gives() == (KUBELET_ROLE, OID)

    del scene.api.answers[f"DELETE {PATH}"]
    await scene.keeping.clean_up()
    assert scene.gives() is None


async def test_access_of_deleted_node_is_kept_until_its_node_object_is_gone() -> None:
    scene = Scene()
    await scene.grant(EXEC)
    scene.api.put(NODE, {"metadata": {"labels": MANAGED_LABEL}})
    scene.heard.deletions["edge-1"] = time.time()
    await scene.settled()
    assert scene.gives() == (KUBELET_ROLE, OID)

    del scene.api.objects[NODE]
    await scene.keeping.clean_up()
    assert scene.gives() is None
    assert ("withdrawn", "edge-1") in scene.heard.told


async def test_access_of_deleted_node_is_withdrawn_after_timeout() -> None:
    scene = Scene()
    await scene.grant(EXEC)
    scene.api.put(NODE, {"metadata": {"labels": MANAGED_LABEL}})
    scene.heard.deletions["edge-1"] = time.time() - LOST_AFTER_SECONDS - 1
    await scene.settled()
    assert scene.gives() is None


async def test_consistent_access_requires_no_cluster_requests() -> None:
    scene = Scene()
    scene.heard.given["edge-1"] = EXEC
    await scene.grant(EXEC)
    await scene.restarted()
    scene.keeping.mark_due("edge-1")
    scene.keeping.mark_due("edge-2")
    scene.api.calls.clear()
    await scene.keeping.clean_up()

    assert scene.api.calls == []
