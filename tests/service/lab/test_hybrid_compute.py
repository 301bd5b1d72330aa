"""Tests of Arc machines, roles and permissions in the lab's ARM, with our client and Azure's delays."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import jwt
import pytest

from aks_flex_lab.arm.eventual_consistency import EventualConsistency
from aks_flex_node.azure.arm import AzureCallError
from aks_flex_node.azure.role_assignments import ROLE_API_VERSION, assign, assignment_id, missing_roles
from aks_flex_node.azure.roles import CLUSTER_ADMIN, RBAC_CLUSTER_ADMIN, READER
from aks_flex_node.retry import RetryDeadline
from tests.service.lab.cloud_harness import CLUSTER, OWNER
from tests.service.lab.test_resource_manager import somebody, wire
from tests.wait import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    import urllib3

    from aks_flex_node.azure.arm import ArmClient
    from tests.service.lab.cloud_harness import Cloud

ROLES = (READER, RBAC_CLUSTER_ADMIN, CLUSTER_ADMIN)
API = "2024-07-10"
GROUP = CLUSTER.partition("/providers/")[0]
ONBOARDING = "b64e21ea-ac4e-4cdf-9dc9-5b892992bee7"


def path_of(name: str) -> str:
    return f"{GROUP}/providers/Microsoft.HybridCompute/machines/{name}"


def machine(arm: ArmClient, name: str, vm: str = "", word: str = "proof") -> dict[str, Any]:
    proof = hashlib.sha256(word.encode()).hexdigest()
    properties = {"vmId": vm or f"vm-of-{name}", "clientPublicKey": proof}
    return arm.put(path_of(name), API, {"location": "westeurope", "tags": {"a": "1"}, "properties": properties})


@pytest.fixture
def pace(cloud: Cloud) -> Iterator[EventualConsistency]:
    """Yields Azure's delays set to zero; restores them after the test."""
    consistency = EventualConsistency(cloud.state)
    consistency.change(principal_seconds=0.0, assignment_seconds=0.0, throttled=0)
    yield consistency
    consistency.change(principal_seconds=0.0, assignment_seconds=0.0, throttled=0)


@pytest.fixture
def owner(cloud: Cloud, pace: EventualConsistency) -> ArmClient:
    return somebody(cloud, OWNER, GROUP)[1]


def test_arc_machine_has_identity_until_deleted(cloud: Cloud, owner: ArmClient) -> None:
    made = machine(owner, "one")
    assert made["identity"]["type"] == "SystemAssigned"
    assert made["properties"]["status"] == "Connected"
    identity = cloud.directory.find(made["identity"]["principalId"], "managedIdentity")
    assert identity
    assert identity.resource_id == path_of("one")
    assert machine(owner, "one")["identity"] == made["identity"]
    assert owner.patch(path_of("one"), API, {"tags": {"b": "2"}})["tags"] == {"b": "2"}
    assert owner.get(path_of("ONE"), API)["tags"] == {"b": "2"}
    assert "proof" not in owner.get(path_of("ONE"), API)
    owner.delete(path_of("one"), API)
    owner.delete(path_of("one"), API)
    assert cloud.directory.find(made["identity"]["principalId"]) is None
    with pytest.raises(AzureCallError) as caught:
        owner.get(path_of("one"), API)
    assert caught.value.status == 404


def test_arc_machine_name_of_another_computer_is_refused(owner: ArmClient) -> None:
    machine(owner, "taken", "vm-1")
    with pytest.raises(AzureCallError) as caught:
        machine(owner, "taken", "vm-2")
    assert (caught.value.status, caught.value.code) == (409, "HCRP409")


def test_onboarding_role_can_create_but_not_delete_arc_machine(cloud: Cloud, owner: ArmClient) -> None:
    _, onboarding = somebody(cloud, ONBOARDING, GROUP)
    machine(onboarding, "onboarded")
    with pytest.raises(AzureCallError) as caught:
        onboarding.delete(path_of("onboarded"), API)
    assert caught.value.status == 403
    _, nobody = somebody(cloud)
    with pytest.raises(AzureCallError):
        machine(nobody, "never")
    assert owner.get(path_of("onboarded"), API)


def test_arc_machine_gets_token_with_its_registered_secret(cloud: Cloud, owner: ArmClient) -> None:
    made = machine(owner, "signed", word="right")

    def ask(secret: str) -> urllib3.BaseHTTPResponse:
        asked = {"vmId": "vm-of-signed", "secret": secret, "resource": "https://x/"}
        return wire(cloud, "POST", "/lab/arc/token", json=asked)

    told = jwt.decode(ask("right").json()["access_token"], options={"verify_signature": False})
    assert (told["oid"], told["xms_mirid"]) == (made["identity"]["principalId"], path_of("signed"))
    assert told["aud"] == "https://x"
    assert ask("wrong").status == 401


def test_new_identity_and_its_roles_take_effect_with_delay(
    cloud: Cloud, owner: ArmClient, pace: EventualConsistency
) -> None:
    pace.change(principal_seconds=0.6, assignment_seconds=0.6)
    principal = machine(owner, "late")["identity"]["principalId"]
    notes: list[str] = []
    for role in ROLES:
        assert assign(owner, CLUSTER, role, principal, RetryDeadline(20, first_delay=0.2), notes.append)
    assert any("does not know" in note for note in notes)
    assert not cloud.assignments.find(assignment_id(CLUSTER, ROLES[0], "else"))
    listed = f"{CLUSTER}/providers/Microsoft.Authorization/roleAssignments"
    found = owner.list(listed, "2022-04-01", **{"$filter": f"principalId eq '{principal}'"})
    assert len(found) == 3
    asked = {"vmId": "vm-of-late", "secret": "proof", "resource": cloud.url}
    token = wire(cloud, "POST", "/lab/arc/token", json=asked).json()["access_token"]

    def actions() -> int:
        path = f"{CLUSTER}/providers/Microsoft.Authorization/permissions?api-version=2022-04-01"
        return len(wire(cloud, "GET", path, headers={"Authorization": f"Bearer {token}"}).json()["value"])

    assert actions() < 3
    until(lambda: actions() == 3, "the roles are in effect")
    for each in found:
        for _ in range(2):  # a missing one is no error
            owner.delete(each["id"], ROLE_API_VERSION)
    assert actions() == 0


def test_missing_roles_are_computed_from_permissions(cloud: Cloud, owner: ArmClient) -> None:
    _, nobody = somebody(cloud)
    assert missing_roles(nobody, CLUSTER, ROLES) == [*ROLES]
    principal, arm = somebody(cloud)
    for count, role in enumerate(ROLES, 1):
        assert assign(owner, CLUSTER, role, principal.object_id, RetryDeadline(1), lambda _: None)
        assert missing_roles(arm, CLUSTER, ROLES) == [*ROLES[count:]]


def test_existing_role_assignment_is_not_created_again(cloud: Cloud, owner: ArmClient) -> None:
    principal, _ = somebody(cloud)
    cloud.assignments.put(CLUSTER, ROLES[0].id, principal.object_id)
    assert not assign(owner, CLUSTER, ROLES[0], principal.object_id, RetryDeadline(1), lambda _: None)


def test_throttled_arm_calls_are_retried(owner: ArmClient, pace: EventualConsistency) -> None:
    machine(owner, "asked")
    pace.change(throttled=2, retry_after=1)
    assert owner.get(path_of("asked"), API)["name"] == "asked"
    assert pace.delays().throttled == 0
