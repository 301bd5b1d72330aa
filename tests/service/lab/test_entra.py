"""Tests of the lab's Entra ID with Azure's libraries, including its errors."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

import jwt
import msal  # type: ignore[import-untyped]
import pytest
import requests
import urllib3
from azure.core.exceptions import ClientAuthenticationError

from aks_flex_lab.entra.directory import TENANT_ID
from aks_flex_node.azure import credentials
from aks_flex_node.azure.arm import AzureCallError
from tests.service.lab.cloud_harness import running_metadata

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from azure.core.credentials import TokenCredential

    from aks_flex_lab.entra.directory import EntraPrincipal
    from tests.service.lab.cloud_harness import Cloud

AZ = "04b07795-8ddb-461a-bbee-02f9e1bf7b46"  # client ID of the Azure CLI


def claims(token: str) -> dict[str, Any]:
    return jwt.decode(token, options={"verify_signature": False})


def signed_in(cloud: Cloud, principal: EntraPrincipal, secret: str, tenant: str = TENANT_ID) -> TokenCredential:
    authority = credentials.TokenAuthority(cloud.url, cloud.ca)
    return credentials.service_principal(tenant, principal.client_id, secret, authority)


def ask(cloud: Cloud, method: str, path: str, **options: Any) -> urllib3.BaseHTTPResponse:
    with urllib3.PoolManager(ca_certs=cloud.ca, retries=False) as pool:
        return pool.request(method, cloud.url + path, **options)


class OnItsPort(requests.adapters.HTTPAdapter):
    """MSAL requests a user's realm on port 443, independent of the port of the Entra ID endpoint."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self._url = url

    def send(self, request: requests.PreparedRequest, *words: Any, **named: Any) -> requests.Response:
        request.url = (request.url or "").replace("https://localhost/", f"{self._url}/")
        return super().send(request, *words, **named)


def trusting(cloud: Cloud) -> requests.Session:
    """Returns MSAL's transport, independent of certificate settings in the environment."""
    session = requests.Session()
    session.mount("https://localhost/", OnItsPort(cloud.url))
    session.trust_env = False
    session.verify = cloud.ca
    return session


def test_azure_identity_signs_in_service_principal(cloud: Cloud) -> None:
    principal = cloud.directory.service_principal("deployer", "right")
    token = signed_in(cloud, principal, "right").get_token("https://management.azure.com/.default")
    told = claims(token.token)
    assert told["aud"] == "https://management.azure.com"
    assert told["iss"] == f"https://sts.windows.net/{TENANT_ID}/"
    assert (told["oid"], told["appid"], told["idtyp"]) == (principal.object_id, principal.client_id, "app")
    assert token.expires_on > time.time() + 3000


def test_token_is_signed_by_published_key(cloud: Cloud) -> None:
    principal = cloud.directory.service_principal("signed", "right")
    token = signed_in(cloud, principal, "right").get_token("https://x/.default").token
    shown = ask(cloud, "GET", f"/{TENANT_ID}/discovery/v2.0/keys").json()["keys"]
    [key] = [each for each in shown if each["kid"] == jwt.get_unverified_header(token)["kid"]]
    assert jwt.decode(token, jwt.PyJWK.from_dict(key).key, ["RS256"], audience="https://x")["tid"] == TENANT_ID


def test_removed_principal_is_unknown(cloud: Cloud) -> None:
    principal = cloud.directory.service_principal("gone", "right")
    signed_in(cloud, principal, "right").get_token("https://x/.default")
    cloud.directory.remove(principal)
    with pytest.raises(ClientAuthenticationError, match="AADSTS700016"):
        signed_in(cloud, principal, "right").get_token("https://x/.default")


def test_unknown_tenant_is_refused(cloud: Cloud) -> None:
    principal = cloud.directory.service_principal("lost", "right")
    other = "99999999-0000-4000-8000-000000000001"
    with pytest.raises(ClientAuthenticationError, match="double check your tenant name"):
        signed_in(cloud, principal, "right", other).get_token("https://x/.default")


@pytest.mark.filterwarnings("ignore:This API has been deprecated")  # a test can only use a password
def test_user_signs_in_by_password_and_gets_tokens_silently(cloud: Cloud) -> None:
    user = cloud.directory.user("ann@flex.internal", "pass word", groups=("ops-group",))
    public = msal.PublicClientApplication(
        AZ, authority=f"{cloud.url}/organizations", instance_discovery=False, http_client=trusting(cloud)
    )
    first = public.acquire_token_by_username_password("ann@flex.internal", "pass word", ["https://x/.default"])
    told = claims(first["access_token"])
    assert (told["oid"], told["idtyp"], told["upn"]) == (user.object_id, "user", "ann@flex.internal")
    assert told["groups"] == ["ops-group"]
    [account] = public.get_accounts()
    second = public.acquire_token_silent(["https://y/.default"], account)
    assert claims(second["access_token"])["aud"] == "https://y"
    wrong = public.acquire_token_by_username_password("ann@flex.internal", "x", ["https://x/.default"])
    assert "AADSTS50126" in wrong["error_description"]


@pytest.fixture
def machine(cloud: Cloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[EntraPrincipal]:
    """Sets up a machine with one managed identity, whose metadata service azure-identity finds by its variable."""
    identity = cloud.directory.managed_identity("edge-1", f"/subscriptions/s/{tmp_path.name}/edge-1")
    with running_metadata(cloud, tmp_path, identity) as url:
        monkeypatch.setenv("AZURE_POD_IDENTITY_AUTHORITY_HOST", url)
        yield identity


def test_azure_identity_gets_managed_identity_token(machine: EntraPrincipal) -> None:
    told = claims(credentials.managed_identity().get_token("https://management.azure.com/.default").token)
    assert (told["oid"], told["xms_mirid"]) == (machine.object_id, machine.resource_id)
    chosen = credentials.managed_identity(machine.client_id).get_token("https://x/.default")
    assert claims(chosen.token)["appid"] == machine.client_id


def test_machine_cannot_use_managed_identity_of_another_machine(cloud: Cloud, machine: EntraPrincipal) -> None:
    other = cloud.directory.managed_identity("edge-2", "/subscriptions/s/edge-2")
    with pytest.raises(AzureCallError, match="Identity not found") as caught:
        credentials.managed_identity(other.client_id).get_token("https://x/.default")
    assert caught.value.name == "managed-identity-not-found"


def test_metadata_service_requires_metadata_header(machine: EntraPrincipal, monkeypatch: pytest.MonkeyPatch) -> None:
    base = os.environ["AZURE_POD_IDENTITY_AUTHORITY_HOST"]
    url = f"{base}/metadata/identity/oauth2/token?api-version=2018-02-01&resource=https://x"
    with urllib3.PoolManager(retries=False) as pool:
        assert pool.request("GET", url).status == 400
        assert pool.request("GET", url, headers={"Metadata": "true"}).status == 200
