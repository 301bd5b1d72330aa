"""Tests of the endpoints at which nodes reach a service, from its settings."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

import pytest

from aks_flex_node.errors import ConfigError
from aks_flex_rp.service import agent_endpoints
from aks_flex_rp.settings import ServiceSettings

if TYPE_CHECKING:
    from pathlib import Path

TENANTS = [{"tenantId": "AAAAAAAA-0000-4000-8000-000000000000", "audiences": ["api://one", "api://two"]}]


def settings(state: Path, **words: Any) -> ServiceSettings:
    (state / "tls").mkdir(exist_ok=True)
    (state / "tls" / "ca.crt").write_text("OWN")
    return ServiceSettings.model_validate({"stateDir": state, "publicUrl": "https://flex.example:8443", **words})


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def test_agent_endpoints_contain_own_ca_for_self_signed_certificate(tmp_path: Path) -> None:
    found = agent_endpoints(settings(tmp_path, auth={"tenants": TENANTS}))

    assert (found.url, found.ca_cert_data) == ("https://flex.example:8443", encoded("OWN"))
    assert found.audiences == {"aaaaaaaa-0000-4000-8000-000000000000": "api://one"}
    assert found.azure == {}


@pytest.mark.parametrize(
    ("words", "vouches"),
    [
        ({"agentsUrl": "https://arm.example"}, False),
        ({"agentsUrl": "https://Arm.example", "tls": {"names": ["arm.example"]}}, True),
        ({"tls": {"certificateFile": "given.crt", "keyFile": "given.key"}}, False),
    ],
    ids=("a gateway", "a further name of its own", "files that were given"),
)
def test_agent_endpoints_contain_own_ca_only_for_own_names(
    tmp_path: Path, words: dict[str, Any], vouches: bool
) -> None:
    assert bool(agent_endpoints(settings(tmp_path, **words)).ca_cert_data) is vouches


def test_agents_url_setting_is_used_as_provider_url(tmp_path: Path) -> None:
    assert agent_endpoints(settings(tmp_path, agentsUrl="https://arm.example/")).url == "https://arm.example"


def test_agent_endpoints_contain_private_cloud_settings(tmp_path: Path) -> None:
    (tmp_path / "cloud.crt").write_text("CLOUD")
    azure = {"resourceManager": "https://arm.example/", "authority": "https://login.example"}

    found = agent_endpoints(settings(tmp_path, azure={**azure, "caFile": tmp_path / "cloud.crt"}))

    assert found.azure == {
        "resourceManager": "https://arm.example",
        "authorityHost": "https://login.example",
        "caCertData": encoded("CLOUD"),
    }


def test_missing_azure_ca_file_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"Cannot read .*cloud\.crt, a certificate that nodes must trust"):
        agent_endpoints(settings(tmp_path, azure={"caFile": tmp_path / "cloud.crt"}))
