"""Tests of a node that manages its credentials with tokens from Entra ID, as an agent does."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from azure.core.exceptions import ClientAuthenticationError

from aks_flex_lab.entra.directory import TENANT_ID
from aks_flex_node.azure import credentials
from tests.service.rp.api.bodies import principal
from tests.service.rp.api.test_polls import LONG, SOON, held
from tests.unit.rp.auth.token_issuer import AUDIENCE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aks_flex_lab.entra.directory import EntraPrincipal
    from tests.service.lab.cloud_harness import Cloud
    from tests.service.rp.api.service_harness import Running, RunService


@pytest.fixture(scope="module")
def service(run_service: RunService, cloud: Cloud) -> Iterator[Running]:
    """Yields a service that trusts the lab's Entra ID."""
    tenant = {"tenantId": TENANT_ID, "metadataUrl": cloud.metadata, "caFile": cloud.ca, "audiences": [AUDIENCE]}
    azure = {"resourceManager": cloud.url, "authority": cloud.url, "caFile": cloud.ca}
    with run_service(auth={"tenants": [tenant]}, azure=azure) as running:
        yield running


@pytest.fixture
def identity(cloud: Cloud) -> EntraPrincipal:
    return cloud.directory.service_principal("edge", "the old secret")


def signed_in(config: dict[str, Any], secret: str, ca: str) -> str:
    """Gets a token with only the node's configuration."""
    azure, audience = config["azure"], config["provider"]["audience"]
    who = azure["servicePrincipal"]
    authority = credentials.TokenAuthority(azure["authorityHost"], ca)
    credential = credentials.service_principal(who["clientTenant"], who["clientId"], secret, authority)
    return f"Bearer {credential.get_token(f'{audience}/.default').token}"


def body(identity: EntraPrincipal, secret: str) -> dict[str, Any]:
    made = principal(identity.client_id, secret)
    made["properties"]["azureAuth"]["servicePrincipal"]["clientTenant"] = TENANT_ID
    return made


def test_node_reads_new_secret_with_token_obtained_by_old_secret(
    service: Running, cloud: Cloud, identity: EntraPrincipal, name: str
) -> None:
    config = service.admin.put(name, body(identity, "the old secret")).properties["config"]
    node = service.admin.as_somebody(signed_in(config, "the old secret", cloud.ca))
    etag = node.get(name).headers["etag"]

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(lambda: node.get(name, if_none_match=etag, prefer=LONG))
        held(service)
        cloud.directory.change(identity, secret="the new secret")
        service.admin.put(name, body(identity, "the new secret"))
        news = waiting.result(SOON)

    assert news.status == 200
    assert "the new secret" not in news.text
    listed = node.credentials(name).json
    assert listed["configVersion"] == news.properties["configVersion"]
    assert listed["servicePrincipal"] == {
        "clientId": identity.client_id,
        "clientSecret": "the new secret",
        "clientTenant": TENANT_ID,
    }
    with pytest.raises(ClientAuthenticationError):
        signed_in(config, "the old secret", cloud.ca)
    again = service.admin.as_somebody(signed_in(config, listed["servicePrincipal"]["clientSecret"], cloud.ca))
    assert again.get(name).status == 200
