"""How nodes reach a service, by its settings."""

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


def test_a_service_on_one_machine_vouches_for_itself(tmp_path: Path) -> None:
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
def test_it_does_not_vouch_for_others(tmp_path: Path, words: dict[str, Any], vouches: bool) -> None:
    assert bool(agent_endpoints(settings(tmp_path, **words)).ca_cert_data) is vouches


def test_nodes_follow_it_where_the_settings_say(tmp_path: Path) -> None:
    assert agent_endpoints(settings(tmp_path, agentsUrl="https://arm.example/")).url == "https://arm.example"


def test_nodes_are_told_of_a_private_cloud(tmp_path: Path) -> None:
    (tmp_path / "cloud.crt").write_text("CLOUD")
    azure = {"resourceManager": "https://arm.example/", "authority": "https://login.example"}

    found = agent_endpoints(settings(tmp_path, azure={**azure, "caFile": tmp_path / "cloud.crt"}))

    assert found.azure == {
        "resourceManager": "https://arm.example",
        "authorityHost": "https://login.example",
        "caCertData": encoded("CLOUD"),
    }


def test_a_file_that_is_not_there_is_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"Cannot read .*cloud\.crt, a certificate that nodes must trust"):
        agent_endpoints(settings(tmp_path, azure={"caFile": tmp_path / "cloud.crt"}))
