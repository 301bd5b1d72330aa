"""Tests of the endpoints at which nodes reach a service, from its settings."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import ValidationError

from aks_flex_node.errors import ConfigError
from aks_flex_rp.service import agent_endpoints
from aks_flex_rp.settings import ServiceSettings

if TYPE_CHECKING:
    from pathlib import Path

TENANTS = [{"tenantId": "AAAAAAAA-0000-4000-8000-000000000000", "audiences": ["api://one", "api://two"]}]


def settings(state: Path, **words: Any) -> ServiceSettings:
    (state / "tls").mkdir(exist_ok=True)
    (state / "tls" / "ca.crt").write_text("OWN")
    return ServiceSettings.model_validate({"stateDir": state, "publicUrl": "https://flex.example:8443", **words})


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def test_agent_endpoints_contain_own_ca_for_self_signed_certificate(tmp_path: Path) -> None:
    found = agent_endpoints(settings(tmp_path, auth={"tenants": TENANTS}))

    assert (found.url, found.ca_cert_data) == ("https://flex.example:8443", encoded("OWN"))
    assert found.audiences == {"aaaaaaaa-0000-4000-8000-000000000000": "api://one"}
    assert found.azure == {}


@pytest.mark.parametrize(
    ("words", "vouches"),
    [
        ({"agentsUrl": "https://arm.example"}, False),
        ({"agentsUrl": "https://Arm.example", "tls": {"names": ["arm.example"]}}, True),
        ({"tls": {"certificateFile": "given.crt", "keyFile": "given.key"}}, False),
    ],
    ids=("a gateway", "a further name of its own", "files that were given"),
)
def test_agent_endpoints_contain_own_ca_only_for_own_names(
    tmp_path: Path, words: dict[str, Any], vouches: bool
) -> None:
    assert bool(agent_endpoints(settings(tmp_path, **words)).ca_cert_data) is vouches


def test_agents_url_setting_is_used_as_provider_url(tmp_path: Path) -> None:
    assert agent_endpoints(settings(tmp_path, agentsUrl="https://arm.example/")).url == "https://arm.example"


def test_agent_endpoints_contain_private_cloud_settings(tmp_path: Path) -> None:
    (tmp_path / "cloud.crt").write_text("CLOUD")
    azure = {"resourceManager": "https://arm.example/", "authority": "https://login.example"}

    found = agent_endpoints(settings(tmp_path, azure={**azure, "caFile": tmp_path / "cloud.crt"}))

    assert found.azure == {
        "resourceManager": "https://arm.example",
        "authorityHost": "https://login.example",
        "caCertData": encoded("CLOUD"),
    }


def test_missing_azure_ca_file_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"Cannot read .*cloud\.crt, a certificate that nodes must trust"):
        agent_endpoints(settings(tmp_path, azure={"caFile": tmp_path / "cloud.crt"}))


GRANT = {"role": "owner", "scope": "/", "principal": "11111111-0000-4000-8000-000000000001"}
OTHER = {"tenantId": "bbbbbbbb-0000-4000-8000-000000000000", "audiences": ["api://one"]}


def test_grant_belongs_to_the_only_tenant(tmp_path: Path) -> None:
    [grant] = settings(tmp_path, auth={"tenants": TENANTS, "roles": [GRANT]}).role_grants
    assert grant.tenant_id == "aaaaaaaa-0000-4000-8000-000000000000"


def test_grant_without_tenant_is_refused_with_several_tenants(tmp_path: Path) -> None:
    """The same application of the second tenant would have the role."""
    with pytest.raises(ValidationError, match=r"auth\.roles\[0\]\.tenantId: set the tenant of principal 11111111"):
        settings(tmp_path, auth={"tenants": [*TENANTS, OTHER], "roles": [GRANT]})
    named = {**GRANT, "tenantId": OTHER["tenantId"]}
    [grant] = settings(tmp_path, auth={"tenants": [*TENANTS, OTHER], "roles": [named]}).role_grants
    assert grant.tenant_id == OTHER["tenantId"]


def test_assignments_of_a_private_cloud_belong_to_its_tenant(tmp_path: Path) -> None:
    """An administrator of the second tenant could create a principal with the object ID of an owner."""
    auth = {"tenants": [*TENANTS, OTHER], "azureRoleAssignments": True}
    azure = {"resourceManager": "https://arm.example"}
    with pytest.raises(ValidationError, match=r"azure\.tenantId: set the tenant of the subscriptions of https://arm"):
        settings(tmp_path, auth=auth, azure=azure)
    named = {**azure, "tenantId": str(OTHER["tenantId"]).upper()}
    assert settings(tmp_path, auth=auth, azure=named).assignments_tenant == OTHER["tenantId"]
    alone = {"tenants": TENANTS, "azureRoleAssignments": True}
    assert settings(tmp_path, auth=alone, azure=azure).assignments_tenant == str(TENANTS[0]["tenantId"]).lower()


@pytest.mark.parametrize("audiences", [["https://management.azure.com/"], ["https://arm.example"], []])
def test_service_does_not_start_with_audiences_of_azure(tmp_path: Path, audiences: list[str]) -> None:
    """Callers would send the service tokens that it can use in Azure."""
    tenant = {**OTHER, "audiences": audiences}
    with pytest.raises(ValidationError, match=r"auth\.tenants\[0\]\.audiences"):
        settings(tmp_path, auth={"tenants": [tenant]}, azure={"resourceManager": "https://arm.example"})


def test_nodes_behind_arm_use_an_audience_that_they_may_send(tmp_path: Path) -> None:
    auth = {"behindArm": True, "tenants": [{**OTHER, "audiences": ["https://management.azure.com", "api://one"]}]}
    arm = "https://management.azure.com"
    assert [*agent_endpoints(settings(tmp_path, auth=auth)).audiences.values()] == ["api://one"]
    assert [*agent_endpoints(settings(tmp_path, auth=auth, agentsUrl=arm)).audiences.values()] == [arm]
    only = {"behindArm": True, "tenants": [{**OTHER, "audiences": [arm]}]}
    with pytest.raises(ValidationError, match=r"nodes call the service at https://flex\.example:8443"):
        settings(tmp_path, auth=only)
