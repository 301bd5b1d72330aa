"""Tests of the lab's ARM, with our client and with raw requests."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

import pytest
import urllib3

from aks_flex_lab.arm.managed_clusters import SUBSCRIPTION_ID
from aks_flex_lab.entra.directory import TENANT_ID
from aks_flex_node.azure import credentials
from aks_flex_node.azure.arm import ArmClient, AzureCallError
from aks_flex_node.azure.roles import CLUSTER_USER
from tests.service.lab.cloud_harness import CLUSTER, OWNER, READER, running_cloud
from tests.service.ports import free_port

if TYPE_CHECKING:
    from pathlib import Path

    from aks_flex_lab.entra.directory import EntraPrincipal
    from aks_flex_lab.pki import CertificateAuthority
    from tests.service.lab.cloud_harness import Cloud

AKS = "2025-01-01"
ROLES = "2022-04-01"
NODES = f"{CLUSTER}/flexNodeConfig"


def arm_of(cloud: Cloud, principal: EntraPrincipal, secret: str = "right") -> ArmClient:  # noqa: S107
    authority = credentials.TokenAuthority(cloud.url, cloud.ca)
    credential = credentials.service_principal(TENANT_ID, principal.client_id, secret, authority)
    return ArmClient(credential, cloud.url, ca_file=cloud.ca)


def somebody(cloud: Cloud, role: str = "", scope: str = CLUSTER) -> tuple[EntraPrincipal, ArmClient]:
    principal = cloud.directory.service_principal("somebody", "right")
    if role:
        cloud.assignments.put(scope, role, principal.object_id)
    return principal, arm_of(cloud, principal)


def wire(cloud: Cloud, method: str, path: str, **options: Any) -> urllib3.BaseHTTPResponse:
    with urllib3.PoolManager(ca_certs=cloud.ca, retries=False) as pool:
        return pool.request(method, cloud.url + path, **options)


def test_cloud_metadata_endpoint_describes_cloud_to_az(cloud: Cloud) -> None:
    told = wire(cloud, "GET", "/metadata/endpoints?api-version=2022-09-01").json()
    assert told["resourceManager"] == told["authentication"]["loginEndpoint"] == cloud.url
    assert cloud.url in told["authentication"]["audiences"]


def test_subscriptions_and_tenants_are_listed(cloud: Cloud) -> None:
    _, arm = somebody(cloud)
    [found] = arm.list("/subscriptions", "2022-12-01")
    assert (found["subscriptionId"], found["tenantId"]) == (SUBSCRIPTION_ID, TENANT_ID)
    assert arm.get(f"/subscriptions/{SUBSCRIPTION_ID}", "2022-12-01")["state"] == "Enabled"
    assert [each["tenantId"] for each in arm.list("/tenants", "2022-12-01")] == [TENANT_ID]


@pytest.mark.parametrize("path", [CLUSTER, CLUSTER.upper()])
def test_reader_can_get_cluster(cloud: Cloud, path: str) -> None:
    _, arm = somebody(cloud, READER)
    cluster = arm.get(path, AKS)
    assert (cluster["id"], cluster["location"]) == (CLUSTER, "westeurope")
    assert cluster["properties"]["currentKubernetesVersion"] == "1.34.4"
    assert cluster["properties"]["networkProfile"]["dnsServiceIP"] == "198.19.128.10"


def test_owner_gets_admin_kubeconfig(cloud: Cloud) -> None:
    _, arm = somebody(cloud, OWNER, f"/subscriptions/{SUBSCRIPTION_ID}")
    [found] = arm.post(f"{CLUSTER}/listClusterAdminCredential", AKS)["kubeconfigs"]
    assert found["name"] == "clusterAdmin"
    assert base64.b64decode(found["value"]) == b"kind: Config\n"


def test_cluster_user_gets_a_kubeconfig_without_a_credential(cloud: Cloud) -> None:
    _, arm = somebody(cloud, CLUSTER_USER.id)
    [found] = arm.post(f"{CLUSTER}/listClusterUserCredential", AKS)["kubeconfigs"]
    assert found["name"] == "clusterUser"
    assert base64.b64decode(found["value"]) == b"kind: Config\nusers: []\n"
    with pytest.raises(AzureCallError):
        arm.post(f"{CLUSTER}/listClusterAdminCredential", AKS)


def test_reader_is_refused_admin_kubeconfig_with_role_hint(cloud: Cloud) -> None:
    _, arm = somebody(cloud, READER)
    with pytest.raises(AzureCallError) as caught:
        arm.post(f"{CLUSTER}/listClusterAdminCredential", AKS)
    assert (caught.value.name, caught.value.status, caught.value.code) == (
        "arm-request-rejected",
        403,
        "AuthorizationFailed",
    )
    assert "listClusterAdminCredential/action" in caught.value.message
    assert f'--role "Azure Kubernetes Service Cluster Admin Role" --scope {CLUSTER}`' in caught.value.hint
    assert "(correlation ID " in caught.value.message


def test_missing_cluster_returns_resource_not_found(cloud: Cloud) -> None:
    _, arm = somebody(cloud, READER, "/")
    with pytest.raises(AzureCallError) as caught:
        arm.get(f"{CLUSTER}2", AKS)
    assert (caught.value.status, caught.value.code) == (404, "ResourceNotFound")


@pytest.mark.parametrize("header", ["", "Basic x", "Bearer", "Bearer x.y.z"])
def test_request_without_valid_token_gets_www_authenticate_header(cloud: Cloud, header: str) -> None:
    answer = wire(cloud, "GET", f"{CLUSTER}?api-version={AKS}", headers={"Authorization": header} if header else {})
    assert answer.status == 401
    assert f'authorization_uri="{cloud.url}/{TENANT_ID}"' in answer.headers["WWW-Authenticate"]
    assert answer.json()["error"]["code"] in {"AuthenticationFailed", "InvalidAuthenticationToken"}


def test_role_assignments_are_created_listed_and_deleted(cloud: Cloud) -> None:
    _, owner = somebody(cloud, OWNER)
    other, arm = somebody(cloud)
    with pytest.raises(AzureCallError):
        arm.get(CLUSTER, AKS)
    name = "7d0a3f6e-0000-4000-8000-000000000001"
    path = f"{CLUSTER}/providers/Microsoft.Authorization/roleAssignments"
    definition = f"/subscriptions/{SUBSCRIPTION_ID}/providers/Microsoft.Authorization/roleDefinitions/{READER}"
    body = {"properties": {"roleDefinitionId": definition, "principalId": other.object_id}}
    made = owner.put(f"{path}/{name}", ROLES, body)
    assert made["properties"]["scope"] == CLUSTER
    assert arm.get(CLUSTER, AKS)["id"] == CLUSTER
    assigned = {"$filter": f"assignedTo('{other.object_id}')"}
    assert [each["name"] for each in owner.list(path, ROLES, **assigned)] == [name]
    assert owner.list(path, ROLES, **{"$filter": "principalId eq 'nobody'"}) == []
    assert len(owner.list(path, ROLES)) > 1
    assert owner.get(f"{path}/{name}", ROLES)["id"] == made["id"]
    with pytest.raises(AzureCallError):
        arm.put(f"{path}/{name}", ROLES, body)
    owner.delete(f"{path}/{name}", ROLES)
    owner.delete(f"{path}/{name}", ROLES)
    with pytest.raises(AzureCallError):
        arm.get(CLUSTER, AKS)


def test_role_of_group_is_listed_for_its_members(cloud: Cloud) -> None:
    _, owner = somebody(cloud, OWNER)
    member = cloud.directory.user("bob@flex.internal", "x", groups=("group-1",))
    cloud.assignments.put(CLUSTER, READER, "group-1")
    path = f"{CLUSTER}/providers/Microsoft.Authorization/roleAssignments"
    [found] = owner.list(path, ROLES, **{"$filter": f"assignedTo('{member.object_id}')"})
    assert found["properties"]["principalId"] == "group-1"


def test_flex_node_requests_are_forwarded_unchanged_to_provider(cloud: Cloud) -> None:
    """Method, path, query, body and headers are forwarded; only ARM's own headers are set by ARM."""
    sent = {
        "Authorization": "Bearer shown",
        "If-Match": '"16"',
        "If-None-Match": '"15"',
        "Prefer": "wait=25",
        "Content-Type": "application/json",
        "x-ms-client-request-id": "mine",
        "x-ms-arm-network-source": "forged",
        "Referer": "https://evil.example/",
    }
    target = f"{NODES}/Edge%2D1?api-version=2026-05-01-preview&configUrl=true&$filter=a%20b"
    answer = wire(cloud, "PUT", target, headers=sent, body=b'{"a": 1}')
    assert answer.status == 200
    heard = answer.json()
    assert (heard["method"], heard["path"], heard["body"]) == ("PUT", target, '{"a": 1}')
    for name in ("Authorization", "If-Match", "If-None-Match", "Prefer", "Content-Type", "x-ms-client-request-id"):
        assert heard["headers"][name.lower()] == sent[name]
    assert heard["headers"]["referer"] == cloud.url + target
    assert heard["headers"]["x-ms-arm-network-source"] == "PublicNetwork"
    assert heard["headers"]["x-ms-correlation-request-id"] == answer.headers["x-ms-correlation-request-id"]
    assert (answer.headers["ETag"], answer.headers["Retry-After"]) == ('"17"', "3")
    assert answer.headers["x-ms-request-id"] == "of-the-provider"


@pytest.mark.parametrize("status", [201, 204, 304, 412, 500])
def test_provider_status_code_is_returned(cloud: Cloud, status: int) -> None:
    answer = wire(cloud, "GET", f"{NODES}/edge-1?api-version=x", headers={"x-answer": str(status)})
    assert answer.status == status
    assert bool(answer.data) is (status not in {204, 304})


@pytest.mark.parametrize(
    "path", [NODES.upper(), f"{NODES}/a/reportStatus", "/providers/Microsoft.ContainerService/operations"]
)
def test_all_provider_paths_are_forwarded(cloud: Cloud, path: str) -> None:
    assert wire(cloud, "GET", f"{path}?api-version=x").json()["path"] == f"{path}?api-version=x"


@pytest.mark.parametrize(
    "path", [f"{NODES}2", f"{CLUSTER}/agentPools/flexNodeConfig", "/providers/Microsoft.Other/operations"]
)
def test_other_paths_are_not_forwarded_to_provider(cloud: Cloud, path: str) -> None:
    assert wire(cloud, "GET", f"{path}?api-version=x").status == 401


def test_unreachable_provider_returns_bad_gateway(authority: CertificateAuthority, tmp_path: Path) -> None:
    with running_cloud(authority, tmp_path, f"https://localhost:{free_port()}") as cloud:
        answer = wire(cloud, "GET", f"{NODES}/edge-1?api-version=x")
        assert (answer.status, answer.json()["error"]["code"]) == (502, "BadGatewayConnection")
