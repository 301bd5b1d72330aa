"""Tests of the pending configuration: the provider's settings with secrets of the machine."""

from __future__ import annotations

import json
from typing import Any

import pytest

from aks_flex_node.agent.stored_config import compose_document, parse_config, parse_version

KNOWN = {
    "azure": {
        "servicePrincipal": {"clientId": "11111111-0000-0000-0000-000000000000", "clientSecret": "old"},
        "bootstrapToken": {"token": "abcdef.0123456789abcdef"},
    }
}
WANTED = {"azure": {"servicePrincipal": {"clientId": "11111111-0000-0000-0000-000000000000"}}, "node": {"maxPods": 5}}


def test_stored_config_keeps_secrets_the_provider_does_not_send() -> None:
    azure = parse_config(compose_document(WANTED, "7", KNOWN))["azure"]
    assert azure["servicePrincipal"]["clientSecret"] == "old"
    assert azure["bootstrapToken"] == {"token": "abcdef.0123456789abcdef"}


def test_stored_config_takes_all_other_settings_from_the_provider() -> None:
    text = compose_document(WANTED, "7", KNOWN)
    assert parse_config(text)["node"] == {"maxPods": 5}
    assert parse_version(text) == "7"
    assert "clientSecret" not in json.dumps(WANTED)  # the input is unchanged


@pytest.mark.parametrize(
    ("sent", "auth"),
    [
        ({}, "exec"),
        ({"node": {"kubelet": {"verbosity": 3}}}, "exec"),
        ({"node": {"kubelet": {"auth": "certificate"}}}, "certificate"),
        ({"provider": {"url": "https://rp.example"}}, None),
    ],
)
def test_update_keeps_the_kubelet_authentication_of_the_join(sent: dict[str, Any], auth: str | None) -> None:
    known = {**KNOWN, "node": {"kubelet": {"auth": "exec"}}}
    made = parse_config(compose_document({**WANTED, **sent}, "7", known))
    assert made.get("node", {}).get("kubelet", {}).get("auth") == auth
    assert parse_config(compose_document({**sent, "node": "none"}, "7", known))["node"] == "none"


def test_damaged_stored_config_has_no_config_and_no_version() -> None:
    assert (parse_config("{"), parse_version("[]")) == ({}, "")
