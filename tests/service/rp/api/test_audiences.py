"""Tests of a self-hosted service that is given tokens for Azure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.service.rp.api import callers
from tests.service.rp.api.bodies import principal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from tests.service.rp.api.service_harness import Running
    from tests.service.rp.api.tenants import Tenant

ARM = "https://management.azure.com"
NODE = "88888888-0000-4000-8000-000000000001"


@pytest.fixture(scope="module")
def upgraded(run_service: Callable[..., AbstractContextManager[Running]], tenant: Tenant) -> Iterator[Running]:
    """Yields a service that was upgraded, with nodes that still use tokens for Azure."""
    settings = tenant.settings.model_copy(update={"former_audiences": (ARM,)})
    with run_service(auth={"tenants": [settings], "roles": callers.GRANTS}) as running:
        yield running


def test_tokens_for_azure_are_refused(service: Running, tenant: Tenant, name: str) -> None:
    """The service takes Azure tokens of its owner, and could use them in Azure."""
    owner = service.admin.as_somebody(tenant.application(callers.OWNER, aud=ARM))
    refused = owner.put(name)
    assert (refused.status, refused.json["error"]["code"]) == (401, "InvalidAuthenticationTokenAudience")
    assert 'resource="api://aks-flex-rp"' in refused.headers["www-authenticate"]


def test_former_audience_gives_no_role(upgraded: Running, tenant: Tenant, name: str) -> None:
    upgraded.admin.put(name, principal(NODE))
    owner = upgraded.admin.as_somebody(tenant.application(callers.OWNER, aud=ARM))
    assert {owner.get(name).status, owner.list().status, owner.delete(name).status, owner.audit(name).status} == {403}
    assert upgraded.admin.as_somebody(tenant.application(callers.OWNER)).get(name).status == 200


def test_node_with_former_audience_gets_its_new_configuration(upgraded: Running, tenant: Tenant, name: str) -> None:
    own = "88888888-0000-4000-8000-000000000011"
    upgraded.admin.put(name, principal(own))
    node = upgraded.admin.as_somebody(tenant.application(own, aud=ARM))
    found = node.get(name)
    assert found.properties["config"]["provider"]["audience"] == "api://aks-flex-rp"
    assert node.get(name, if_none_match=found.headers["etag"]).status == 304
    assert node.report(name, {"appliedConfigVersion": found.properties["configVersion"]}).status == 200
    assert node.credentials(name).status == 200
    assert node.put(name, principal(own)).status == 403
