"""Tests of tokens that real clients got from the lab's Entra ID, and of roles in the lab's ARM."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import pytest

from aks_flex_lab.entra.directory import TENANT_ID
from aks_flex_node.azure import credentials
from aks_flex_node.azure.arm import ArmClient
from aks_flex_rp.arm.ids import parse_cluster_id
from aks_flex_rp.auth.auth_errors import TenantUnreachable
from aks_flex_rp.auth.auth_settings import AuthSettings, TenantSettings
from aks_flex_rp.auth.roles import AzureAssignments, Operation, Roles
from aks_flex_rp.auth.token_verifier import TokenVerifier
from tests.remedies.catalogue import advice
from tests.service.lab.cloud_harness import CLUSTER, OWNER, READER

if TYPE_CHECKING:
    from pathlib import Path

    from aks_flex_lab.entra.directory import EntraPrincipal
    from tests.service.lab.cloud_harness import Cloud

PLANT = parse_cluster_id(CLUSTER)
SIBLING = parse_cluster_id(f"{CLUSTER}2")
assert PLANT is not None
assert SIBLING is not None


class Clock:
    """A clock that a test advances from the current time."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.ahead


def tokens_of(cloud: Cloud, ca: str | None = None, clock: Clock | None = None) -> TokenVerifier:
    tenant = TenantSettings(
        tenant_id=TENANT_ID, metadata_url=cloud.metadata, ca_file=ca or cloud.ca, audiences=(cloud.url,)
    )
    return TokenVerifier(AuthSettings(tenants=(tenant,)), monotonic=clock or time.monotonic)


def signed_in(cloud: Cloud, principal: EntraPrincipal) -> str:
    authority = credentials.TokenAuthority(cloud.url, cloud.ca)
    credential = credentials.service_principal(TENANT_ID, principal.client_id, "right", authority)
    return f"Bearer {credential.get_token(f'{cloud.url}/.default').token}"


def test_service_principal_is_identified_by_its_token(cloud: Cloud) -> None:
    principal = cloud.directory.service_principal("p", "right")
    tokens = tokens_of(cloud)
    header = signed_in(cloud, principal)
    caller = asyncio.run(tokens.caller(header))
    assert (caller.id, caller.kind, caller.tenant) == (principal.object_id, "Application", TENANT_ID)
    assert caller.ids == {principal.object_id, principal.client_id}
    assert tokens.cached(header) is caller


@pytest.mark.remedy("entra-unreachable")
def test_tenant_with_untrusted_certificate_is_unreachable(cloud: Cloud, tmp_path: Path) -> None:
    from aks_flex_lab.pki import CertificateAuthority as Another  # noqa: PLC0415

    stranger = Another(tmp_path)
    stranger.ensure()
    principal = cloud.directory.service_principal("p", "right")
    header = signed_in(cloud, principal)
    with pytest.raises(TenantUnreachable, match="certificate") as caught:
        asyncio.run(tokens_of(cloud, str(stranger.certificate)).caller(header))
    assert caught.value.name == "entra-unreachable"

    advice("entra-unreachable", "Correct these settings")  # `caFile` of the tenant
    assert asyncio.run(tokens_of(cloud, cloud.ca).caller(header)).id == principal.object_id


async def test_azure_role_assignments_authorize_callers(cloud: Cloud) -> None:
    """The service reads them with its own identity, which gives callers no permission."""
    assert PLANT is not None
    assert SIBLING is not None
    service = cloud.directory.service_principal("service", "right")
    cloud.assignments.put("", OWNER, service.object_id)
    reader = cloud.directory.service_principal("reader", "right")
    cloud.assignments.put(CLUSTER, READER, reader.object_id)
    below = cloud.directory.service_principal("below", "right")
    cloud.assignments.put(f"{CLUSTER}/flexNodeConfig/edge-1", OWNER, below.object_id)
    credential = credentials.service_principal(
        TENANT_ID, service.client_id, "right", credentials.TokenAuthority(cloud.url, cloud.ca)
    )
    clock = Clock()
    roles = Roles([], AzureAssignments(ArmClient(credential, cloud.url, ca_file=cloud.ca), TENANT_ID, clock))
    tokens = tokens_of(cloud)

    caller = await tokens.caller(signed_in(cloud, reader))
    assert roles.allows_now(caller, Operation.READ, PLANT) is None
    assert await roles.allows(caller, Operation.READ, PLANT)
    assert roles.allows_now(caller, Operation.READ, PLANT) is True
    assert not await roles.allows(caller, Operation.WRITE, PLANT)
    assert not await roles.allows(caller, Operation.READ, SIBLING)
    cloud.assignments.put(CLUSTER, OWNER, reader.object_id)
    assert not await roles.allows(caller, Operation.WRITE, PLANT)
    clock.ahead += 301
    assert await roles.allows(caller, Operation.WRITE, PLANT)
    assert not await roles.allows(await tokens.caller(signed_in(cloud, below)), Operation.READ, PLANT)


def test_provider_reads_its_identity_from_environment(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    service = cloud.directory.service_principal("service", "right")
    cloud.assignments.put(CLUSTER, READER, service.object_id)
    monkeypatch.setenv("AZURE_TENANT_ID", TENANT_ID)
    monkeypatch.setenv("AZURE_CLIENT_ID", service.client_id)
    monkeypatch.setenv("AZURE_CLIENT_SECRET", "right")
    credential = credentials.default_credential(credentials.TokenAuthority(cloud.url, cloud.ca))
    assert ArmClient(credential, cloud.url, ca_file=cloud.ca).get(CLUSTER, "2025-01-01")["id"] == CLUSTER
