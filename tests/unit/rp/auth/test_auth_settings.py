"""Tests of the strict validation of authentication settings."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from aks_flex_rp.auth.auth_settings import AuthSettings, TenantSettings

TENANT = "aaaaaaaa-0000-4000-8000-000000000001"
GRANT = {"role": "reader", "scope": "/", "principal": TENANT}


def test_empty_auth_settings_are_valid() -> None:
    assert AuthSettings.model_validate({}) == AuthSettings()


def test_tenant_settings_need_only_tenant_id() -> None:
    tenant = TenantSettings.model_validate({"tenantId": TENANT.upper()})
    assert tenant.metadata == f"https://login.microsoftonline.com/{TENANT}/v2.0/.well-known/openid-configuration"
    assert tenant.sign_in == f"https://login.microsoftonline.com/{TENANT}"
    assert tenant.audiences == ()


def test_tenant_sign_in_url_is_derived_from_private_metadata_url() -> None:
    address = f"https://login.example/{TENANT}/v2.0/.well-known/openid-configuration"
    tenant = TenantSettings.model_validate({"tenantId": TENANT, "metadataUrl": address, "caFile": "/ca.pem"})
    assert (tenant.metadata, tenant.sign_in, tenant.ca_file) == (
        address,
        f"https://login.example/{TENANT}",
        "/ca.pem",
    )


@pytest.mark.parametrize(
    ("value", "where", "words"),
    [
        ({"tenants": [{"tenantId": "contoso.com"}]}, "tenants.0.tenantId", "must be an ID such as"),
        ({"tenants": [{"tenantId": TENANT, "metadataUrl": "http://x"}]}, "tenants.0.metadataUrl", "https://"),
        ({"tenants": [{"tenantId": TENANT, "audiences": []}]}, "", "tenants[0].audiences: no audience is set"),
        ({"tenants": [{"tenantId": TENANT}]}, "", "Register an application for the service in Entra ID"),
        ({"tenants": [{"tenantId": TENANT, "issuer": "x"}]}, "tenants.0.issuer", "not permitted"),
        ({"roles": [{**GRANT, "role": "admin"}]}, "roles.0.role", "'owner', 'contributor' or 'reader'"),
        ({"roles": [{**GRANT, "scope": "edge"}]}, "roles.0.scope", "must be `/` or the ID of"),
        ({"roles": [{**GRANT, "scope": ""}]}, "roles.0.scope", "must be `/` or the ID of"),
        ({"roles": [{**GRANT, "scope": "/subscriptions"}]}, "roles.0.scope", "must be `/` or the ID of"),
        ({"roles": [{**GRANT, "scope": f"/subscriptions/{TENANT}/x"}]}, "roles.0.scope", "must be `/` or the ID of"),
        ({"roles": [{**GRANT, "principal": "ann@example.com"}]}, "roles.0.principal", "must be an ID such as"),
        ({"azureRoleAssigments": True}, "azureRoleAssigments", "not permitted"),
    ],
)
def test_invalid_auth_settings_are_refused_with_location(value: dict[str, Any], where: str, words: str) -> None:
    with pytest.raises(ValidationError) as caught:
        AuthSettings.model_validate(value)
    [problem] = caught.value.errors()
    assert ".".join(str(part) for part in problem["loc"]) == where
    assert words in problem["msg"]
