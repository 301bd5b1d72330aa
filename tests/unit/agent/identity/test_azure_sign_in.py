"""Tests of the Azure identities of a node and of its operator, and of the cloud's endpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest

from aks_flex_node.agent.identity import azure_sign_in, cloud_endpoints
from aks_flex_node.azure.arm import AzureCallError
from aks_flex_node.azure.credentials import FirstWorkingCredential
from aks_flex_node.azure.managed_identity import ArcCredential, ImdsCredential
from aks_flex_node.errors import ConfigError
from tests.unit.agent.config.builders import load_settings

if TYPE_CHECKING:
    from azure.core.credentials import TokenCredential

    from aks_flex_node.settings.models import NodeConfig

PRINCIPAL = {"clientId": "app-1", "clientSecret": "canary", "tenantId": "tenant-1"}
FEDERATED = {"clientId": "app-1", "tokenFile": "/token", "tenantId": "tenant-1"}


def config(**azure: Any) -> NodeConfig:
    return load_settings({f"azure.{name}": value for name, value in azure.items()}).config


@pytest.mark.parametrize(
    ("azure", "kind"),
    [
        ({}, None),
        ({"servicePrincipal": PRINCIPAL}, "servicePrincipal"),
        ({"managedIdentity": {}}, "managedIdentity"),
        ({"workloadIdentity": FEDERATED}, "workloadIdentity"),
        ({"arc": {"enabled": True}}, "arc"),
        ({"arc": {"enabled": True}, "servicePrincipal": PRINCIPAL}, "arc"),
    ],
)
def test_identity_kind_is_selected_from_the_config(azure: dict[str, Any], kind: str | None) -> None:
    assert azure_sign_in.identity_kind(config(**azure)) == kind


@pytest.mark.parametrize(
    ("azure", "name", "words"),
    [
        ({}, "azure-identity-missing", "has no Azure identity"),
        ({"servicePrincipal": {"clientId": "a", "tenantId": "t"}}, "azure-identity-incomplete", "no clientSecret"),
        ({"servicePrincipal": {"clientId": "a", "clientSecret": "s"}}, "azure-identity-incomplete", "no tenantId"),
        (
            {"workloadIdentity": {"clientId": "a", "tokenFile": "/x"}},
            "azure-identity-incomplete",
            "azure.workloadIdentity has no tenantId",
        ),
    ],
)
def test_sign_in_names_missing_identity_settings(azure: dict[str, Any], name: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        azure_sign_in.require_identity(config(**azure))
    assert caught.value.name == name


def test_service_principal_uses_the_tenant_of_the_azure_section() -> None:
    azure_sign_in.require_identity(config(tenantId="t", servicePrincipal={"clientId": "a", "clientSecret": "s"}))


@pytest.mark.parametrize(
    ("azure", "kind"), [({"arc": {"enabled": True}}, ArcCredential), ({"managedIdentity": {}}, ImdsCredential)]
)
def test_machine_identities_need_no_further_settings(azure: dict[str, Any], kind: type) -> None:
    assert isinstance(azure_sign_in.node_credential(config(**azure), None), kind)


def test_missing_federated_token_file_is_reported() -> None:
    with pytest.raises(AzureCallError, match=r"federated token file .*/token cannot be read") as caught:
        azure_sign_in.node_credential(config(workloadIdentity=FEDERATED), None)
    assert caught.value.name == "federated-token-unreadable"


class FakeCredential:
    """Signs in or fails with a reason."""

    def __init__(self, name: str, error: str = "") -> None:
        self.name, self.error, self.asked = name, error, 0

    def get_token(self, *_: str, **__: Any) -> Any:
        self.asked += 1
        if self.error:
            raise AzureCallError(self.error, f"Not {self.name}.", "", retryable=False)
        return self.name


def first_of(*candidates: FakeCredential) -> FirstWorkingCredential:
    return FirstWorkingCredential(cast("list[TokenCredential]", candidates))


def test_first_credential_that_works_is_used_from_then_on() -> None:
    person, machine, last = (
        FakeCredential("person", "azure-cli-not-found"),
        FakeCredential("machine"),
        FakeCredential("last"),
    )
    either = first_of(person, machine, last)
    assert {str(either.get_token(each)) for each in "xy"} == {"machine"}
    assert (person.asked, machine.asked, last.asked) == (1, 2, 0)


def test_sign_in_failure_lists_the_reasons_of_all_credentials() -> None:
    with pytest.raises(AzureCallError) as caught:
        first_of(
            FakeCredential("person", "azure-cli-not-found"), FakeCredential("machine", "arc-agent-unavailable")
        ).get_token("x")
    assert caught.value.name == "azure-cli-not-found"
    assert caught.value.message == "Not person. Not machine."


@pytest.mark.parametrize(
    ("azure", "manager", "login"),
    [
        ({}, "https://management.azure.com", "https://login.microsoftonline.com"),
        ({"cloud": "AzureChinaCloud"}, "https://management.chinacloudapi.cn", "https://login.chinacloudapi.cn"),
        ({"cloud": "azureusgovernment"}, "https://management.usgovcloudapi.net", "https://login.microsoftonline.us"),
        (
            {"resourceManager": "https://management.usgovcloudapi.net"},
            "https://management.usgovcloudapi.net",
            "https://login.microsoftonline.us",
        ),
        (
            {"cloud": "Ours", "resourceManager": "https://arm.example", "authorityHost": "https://login.example"},
            "https://arm.example",
            "https://login.example",
        ),
    ],
)
def test_cloud_endpoints_come_from_the_cloud_name_or_the_config(
    azure: dict[str, Any], manager: str, login: str
) -> None:
    of = config(**azure)
    assert (cloud_endpoints.resource_manager(of), cloud_endpoints.authority_host(of)) == (manager, login)


def test_unknown_cloud_requires_a_resource_manager_url() -> None:
    with pytest.raises(ConfigError) as caught:
        cloud_endpoints.check_cloud(config(cloud="Ours"))
    assert caught.value.name == "cloud-unknown"
    cloud_endpoints.check_cloud(config(cloud="Ours", resourceManager="https://arm.example"))
