"""Tests of which audiences belong to Azure, and which servers may receive their tokens."""

from __future__ import annotations

import jwt
import pytest

from aks_flex_node.api.audiences import audience_forms, is_azure_audience, may_send_token, token_audiences

APPLICATION = "dddddddd-0000-4000-8000-000000000004"
ARM = "https://management.azure.com"
PRIVATE = "https://management.flex.internal"
AZURE = [
    ARM,
    f"{ARM}/",
    ARM.upper(),
    "https://management.core.windows.net/",
    "https://management.usgovcloudapi.net",
    "https://graph.microsoft.com",
    "https://vault.azure.net",
    "https://edge.vault.azure.net",
    "https://storage.azure.com/",
    "https://account.blob.core.windows.net",
    "https://database.windows.net/",
    "00000003-0000-0000-c000-000000000000",
    "797F4846-BA00-4FD7-BA43-DAC1F8F63013",
    "6dae42f8-4368-4678-94ff-3960e28e3630",
    "499b84ac-1321-427f-aa17-267ca6975798",
    "api://499b84ac-1321-427f-aa17-267ca6975798",
    "00000002-0000-0ff1-ce00-000000000000",
    "https://app.vssps.visualstudio.com",
    "https://api.loganalytics.io",
    "https://edge.azconfig.io",
    "https://dev.azuresynapse.net",
    "api://AzureADTokenExchange",
    "api://AzureADTokenExchangeUSGov",
]
OTHERS = [
    "https://service-of-microsoft.example",
    "https://management.contoso.onmicrosoft.com/0f0e0d0c-0000-4000-8000-000000000001",  # as of Azure Stack
    "http://flex.example.evil:8443",
    "urn:ms-drs:enterpriseregistration",
    "enterpriseregistration",
    "",
]
OWN = [
    "api://aks-flex-rp",
    f"api://{APPLICATION}",
    APPLICATION,
    "API://contoso.onmicrosoft.com/flex",
    "https://flex.example",
    "https://flex.example:8443/",
]


@pytest.mark.parametrize("audience", AZURE)
def test_azure_token_is_never_sent_to_another_server(audience: str) -> None:
    """A server that receives such a token can use it in Azure."""
    assert is_azure_audience(audience)
    for origin in (
        "https://flex.example:8443",
        "https://flex.westeurope.cloudapp.azure.com",
        f"{ARM}:8443",
        "nonsense",
    ):
        assert not may_send_token(audience, origin)
        assert not may_send_token(audience, origin, resource_manager=origin)  # that is also a setting of the provider


@pytest.mark.parametrize("audience", OWN)
def test_own_audience_may_be_sent_to_the_provider(audience: str) -> None:
    assert not is_azure_audience(audience)
    assert may_send_token(audience, "https://flex.example:8443")


@pytest.mark.parametrize("audience", OTHERS)
def test_token_for_an_unknown_service_is_not_sent(audience: str) -> None:
    """A compromised provider names a service that the list of Azure's audiences does not contain."""
    assert not may_send_token(audience, "https://flex.example:8443")
    assert not may_send_token(audience, "https://flex.example:8443", resource_manager="https://evil.example")


@pytest.mark.parametrize("audience", [ARM, f"{ARM}/", "https://management.core.windows.net/"])
def test_arm_token_may_be_sent_to_arm(audience: str) -> None:
    assert may_send_token(audience, ARM)
    assert not may_send_token("https://vault.azure.net", ARM)


def test_private_cloud_token_is_sent_to_its_resource_manager_only() -> None:
    assert may_send_token(f"{PRIVATE}/", PRIVATE, PRIVATE)
    assert not may_send_token(PRIVATE, "https://flex.example:8443", PRIVATE)
    assert not may_send_token(PRIVATE, f"{PRIVATE}:8443", PRIVATE)


def test_application_has_two_forms_of_audience() -> None:
    assert set(audience_forms(f"api://{APPLICATION}")) == {APPLICATION, f"api://{APPLICATION}"}
    assert audience_forms("api://aks-flex-rp") == ("api://aks-flex-rp",)


def test_audiences_are_read_from_a_token() -> None:
    key = "a key that is long enough for this algorithm"
    assert token_audiences(jwt.encode({"aud": ARM}, key)) == (ARM,)
    assert token_audiences(jwt.encode({"aud": [ARM, "b"]}, key)) == (ARM, "b")
    for text in ("opaque", "a.b.c", "a.W10.c", "", f"a.{'W' * 10}.c"):
        assert token_audiences(text) == ()
