"""Tests of a node that manages its credentials with tokens from Entra ID, as an agent does."""

from __future__ import annotations

import base64
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from azure.core.exceptions import ClientAuthenticationError

from aks_flex_lab.entra.directory import TENANT_ID
from aks_flex_node.azure import credentials
from tests.service.rp.api.bodies import principal
from tests.service.rp.api.fake_clusters import PLANT
from tests.service.rp.api.test_joins import READY
from tests.service.rp.api.test_polls import LONG, SOON, held
from tests.unit.rp.auth.token_issuer import AUDIENCE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from aks_flex_lab.entra.directory import EntraPrincipal
    from tests.service.lab.cloud_harness import Cloud
    from tests.service.rp.api.client import Api
    from tests.service.rp.api.service_harness import Running


@pytest.fixture(scope="module")
def service(run_service: Callable[..., AbstractContextManager[Running]], cloud: Cloud) -> Iterator[Running]:
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


def test_config_contains_endpoints_and_ca_certificates_for_managed_node(
    service: Running, cloud: Cloud, identity: EntraPrincipal, name: str
) -> None:
    config = service.admin.put(name, body(identity, "the old secret")).properties["config"]

    assert config["azure"]["resourceManager"] == config["azure"]["authorityHost"] == cloud.url
    assert base64.b64decode(config["azure"]["caCertData"]).decode().startswith("-----BEGIN CERTIFICATE-----")
    own = (service.room / "tls" / "ca.crt").read_bytes()
    assert base64.b64decode(config["provider"]["caCertData"]) == own
    assert (config["provider"]["url"], config["provider"]["audience"]) == (service.connection.url, AUDIENCE)


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


def test_joined_node_regenerates_its_token_and_rejoins(
    service: Running, cloud: Cloud, identity: EntraPrincipal, name: str
) -> None:
    admin = service.admin
    config = admin.put(name, body(identity, "the old secret"), url=True).properties["config"]
    [first] = [each for each, (node, _) in service.clusters.tokens.items() if node == name]
    joins = service.service.join_tracker
    service.call(joins.on_token_csr(PLANT.key, name, first, "csr-1"))
    service.call(joins.on_token_certificate(PLANT.key, name, first, "csr-1"))
    service.call(joins.on_node_observed(PLANT.key, name, READY))
    assert state(admin, name) == "Joined"

    node = admin.as_somebody(signed_in(config, "the old secret", cloud.ca))
    made = node.regenerate(name)

    assert made.status == 200
    assert state(admin, name) == "Joined"
    bundle = admin.fetch(made.json["configUrl"]).json
    assert bundle["configVersion"] == made.json["configVersion"]
    token, _, _ = bundle["config"]["azure"]["bootstrapToken"]["token"].partition(".")
    assert service.call(joins.is_current_token(PLANT.key, name, token))
    assert bundle["config"]["azure"]["servicePrincipal"]["clientSecret"] == "the old secret"
    service.call(joins.on_token_csr(PLANT.key, name, token, "csr-2"))
    service.call(joins.on_token_certificate(PLANT.key, name, token, "csr-2"))
    service.call(joins.on_node_observed(PLANT.key, name, READY))
    assert state(admin, name) == "Joined"


def state(api: Api, name: str) -> str:
    found: str = api.get(name).properties["status"]["joinState"]
    return found
