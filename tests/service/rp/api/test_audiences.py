"""Tests of a self-hosted service that is given tokens for Azure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.service.rp.api import callers

if TYPE_CHECKING:
    from tests.service.rp.api.service_harness import Running
    from tests.service.rp.api.tenants import Tenant

ARM = "https://management.azure.com"
NODE = "88888888-0000-4000-8000-000000000001"


def test_tokens_for_azure_are_refused(service: Running, tenant: Tenant, name: str) -> None:
    """The service takes Azure tokens of its owner, and could use them in Azure."""
    owner = service.admin.as_somebody(tenant.application(callers.OWNER, aud=ARM))
    refused = owner.put(name)
    assert (refused.status, refused.json["error"]["code"]) == (401, "InvalidAuthenticationTokenAudience")
    assert 'resource="api://aks-flex-rp"' in refused.headers["www-authenticate"]
