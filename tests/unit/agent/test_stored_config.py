"""The next configuration: the provider's words, with secrets that only the machine has."""

from __future__ import annotations

import json

from aks_flex_node.agent.stored_config import client_secret_in, compose_document, parse_config, parse_version

KNOWN = {
    "azure": {
        "servicePrincipal": {"clientId": "11111111-0000-0000-0000-000000000000", "clientSecret": "old"},
        "bootstrapToken": {"token": "abcdef.0123456789abcdef"},
    }
}
WANTED = {"azure": {"servicePrincipal": {"clientId": "11111111-0000-0000-0000-000000000000"}}, "node": {"maxPods": 5}}


def test_what_the_provider_does_not_say_stays_secret_and_stays() -> None:
    azure = parse_config(compose_document(WANTED, "7", KNOWN))["azure"]
    assert azure["servicePrincipal"]["clientSecret"] == "old"
    assert azure["bootstrapToken"] == {"token": "abcdef.0123456789abcdef"}


def test_a_new_secret_takes_its_place() -> None:
    assert client_secret_in(parse_config(compose_document(WANTED, "7", KNOWN, "new"))) == "new"


def test_another_principal_does_not_get_the_secret_of_the_first() -> None:
    other = {"azure": {"servicePrincipal": {"clientId": "22222222-0000-0000-0000-000000000000"}}}
    assert client_secret_in(parse_config(compose_document(other, "7", KNOWN))) == ""


def test_everything_else_is_as_the_provider_says() -> None:
    text = compose_document(WANTED, "7", KNOWN)
    assert parse_config(text)["node"] == {"maxPods": 5}
    assert parse_version(text) == "7"
    assert "clientSecret" not in json.dumps(WANTED)  # what was given is left as it was


def test_a_damaged_file_has_no_configuration_and_no_version() -> None:
    assert (parse_config("{"), parse_version("[]")) == ({}, "")
