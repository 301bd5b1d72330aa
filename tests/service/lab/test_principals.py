"""Principals that `aks-flex-lab principal` creates: they can sign in, and have the roles that were asked for."""

from __future__ import annotations

import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from aks_flex_lab.components.azure import AzureComponent
from aks_flex_lab.components.resource_provider import CLUSTER_ID
from aks_flex_lab.entra.directory import TENANT_ID
from aks_flex_lab.errors import UsageError
from aks_flex_lab.kernel.namespaces import NetworkNamespace
from aks_flex_lab.layout import lab_layout
from aks_flex_lab.principals import LabPrincipals, find_role
from aks_flex_node.azure import credentials
from aks_flex_node.azure.credentials import TokenAuthority

if TYPE_CHECKING:
    from tests.service.lab.cloud_harness import Cloud


@dataclass(frozen=True)
class CloudAzure(AzureComponent):
    """The lab's Azure with the state of a cloud on loopback."""

    folder: Path = Path()

    @property
    def state(self) -> Path:
        return self.folder


@pytest.fixture
def principals(cloud: Cloud) -> LabPrincipals:
    return LabPrincipals(CloudAzure(lab_layout(), NetworkNamespace("unused"), cloud.state))


def test_principal_signs_in_with_its_certificate(cloud: Cloud, principals: LabPrincipals, tmp_path: Path) -> None:
    file = tmp_path / "client.pem"
    made = principals.with_certificate("edge-1", file)

    credential = credentials.service_principal_by_certificate(
        TENANT_ID, made.client_id, file.read_bytes(), TokenAuthority(cloud.url, cloud.ca)
    )
    assert credential.get_token(f"{cloud.url}/.default").token
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_principal_signs_in_with_its_secret_and_has_its_roles(
    cloud: Cloud, principals: LabPrincipals, tmp_path: Path
) -> None:
    file = tmp_path / "secret"
    made = principals.with_secret("edge-2", file)
    principals.assign(made, [find_role("reader"), find_role("Owner")], CLUSTER_ID)

    credential = credentials.service_principal(
        TENANT_ID, made.client_id, file.read_text(), TokenAuthority(cloud.url, cloud.ca)
    )
    assert credential.get_token(f"{cloud.url}/.default").token
    assert {each.name for each in cloud.assignments.roles(made.object_id, CLUSTER_ID)} == {"Reader", "Owner"}


def test_unknown_role_is_refused_with_suggestion() -> None:
    with pytest.raises(UsageError, match="no role 'Ownr'") as refused:
        find_role("Ownr")
    assert "Owner" in refused.value.hint
