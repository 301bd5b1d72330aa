"""Tests of the selection of a tenant's keys."""

from __future__ import annotations

from typing import Any

import pytest

from aks_flex_rp.auth.tenant_keys import parse_keys, token_issuers
from tests.unit.rp.auth.token_issuer import STRANGER, TENANT, Issuer, rsa_key

GOOD: dict[str, Any] = Issuer._shown("good", rsa_key("first"))


@pytest.mark.parametrize(
    ("changes", "used"),
    [
        ({}, True),
        ({"use": None}, True),
        ({"issuer": "https://login.microsoftonline.com/{tenantid}/v2.0"}, True),
        ({"issuer": f"https://login.microsoftonline.com/{TENANT}/v2.0"}, True),
        ({"issuer": f"https://login.microsoftonline.com/{STRANGER}/v2.0"}, False),
        ({"use": "enc"}, False),
        ({"kid": None}, False),
        ({"kty": "oct", "k": "c2VjcmV0"}, False),
        ({"kty": "strange"}, False),
        ({"n": None}, False),
        ({"n": 5}, False),
    ],
)
def test_only_valid_signing_keys_of_tenant_are_used(changes: dict[str, Any], used: bool) -> None:
    key = {name: value for name, value in {**GOOD, **changes}.items() if value is not None}
    assert bool(parse_keys(TENANT, {"keys": [key]})) is used


@pytest.mark.parametrize("keys", [None, 5, "x", {}, [5], [None], ["x"], [[]]])
def test_malformed_key_set_yields_no_keys(keys: object) -> None:
    assert parse_keys(TENANT, {"keys": keys}) == {}


def test_tenant_has_v1_and_v2_token_issuers() -> None:
    assert token_issuers(TENANT, "https://login.example/{tenantid}/v2.0") == {
        f"https://login.example/{TENANT}/v2.0",
        f"https://sts.windows.net/{TENANT}/",
    }
