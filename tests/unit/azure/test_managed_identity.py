"""Tests of the metadata services of a machine, and of the Arc agent's endpoint."""

from __future__ import annotations

import pytest

from aks_flex_node.azure.managed_identity import parse_himds_endpoint, service_message

AZCMAGENT = """\
[Manager]
DefaultEnvironment="IMDS_ENDPOINT=http://localhost:40342" "IDENTITY_ENDPOINT=http://localhost:40342/metadata/identity/oauth2/token"
"""


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (AZCMAGENT, "http://localhost:40342"),
        ("[Manager]\nDefaultEnvironment=IMDS_ENDPOINT=http://127.0.0.1:1234\n", "http://127.0.0.1:1234"),
        ("[Manager]\n", ""),
        ('DefaultEnvironment="IMDS_ENDPOINT=http://evil.example:40342"', ""),
    ],
)
def test_himds_endpoint_is_accepted_only_on_loopback(text: str, found: str) -> None:
    assert parse_himds_endpoint(text) == found


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (
            "ManagedIdentityCredential …. Token request error: (invalid_request) Identity not found",
            "Identity not found",
        ),
        ("Token request error: (x) ", "no message"),
        ("Something else.\nAnd more", "Something else"),
        ("", "no message"),
    ],
)
def test_service_message_extracts_reason_from_credential_error(message: str, words: str) -> None:
    assert service_message(message) == words
