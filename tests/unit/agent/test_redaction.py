"""Tests of redaction: the same patterns for every text that leaves the node."""

from __future__ import annotations

import pytest

from aks_flex_node.agent.daemon.conditions import redact_tokens
from aks_flex_node.redaction import redact, redact_output, redact_values
from tests.unit.agent.config.builders import TOKEN

KEY = "-----BEGIN RSA PRIVATE KEY-----\nabc\n-----END RSA PRIVATE KEY-----"
CASES = [
    (f"token {TOKEN} seen", "token *** seen"),
    (f"the key\n{KEY}\nthere", "the key\n***\nthere"),
    (f"password: {KEY}", "***"),
    ("eyJhbGciOi.eyJzdWIi.c2ln-_ after", "*** after"),
    (f"eyJhbGciOi-{TOKEN}.c2ln after", "*** after"),
    (f"eyJhbGciOi.eyJzdWIi.{TOKEN} after", "*** after"),
    ("Authorization: Bearer abc.def~+/==", "Authorization: Bearer ***"),
    ("authorization: bearer abc|def next", "authorization: bearer *** next"),
    ("Bearer eyJhbGciOi.eyJzdWIi.c2ln~more", "Bearer ***"),
    ("pull http://me:se@cret@proxy:3128/x", "pull http://***@proxy:3128/x"),
    ('pull http://me:se"cret@proxy:3128/x', "pull http://***@proxy:3128/x"),
    ("pull //me:word@proxy:3128/x", "pull //***@proxy:3128/x"),
    ("https://onlytoken@host/x", "https://***@host/x"),
    ("the blob's sig=a%2Fb%3D&se=2", "the blob's sig=***&se=2"),
    ('"clientSecret": "abc", "x": 1', '"***", "x": 1'),
    ("client_secret=abc&x=1", "***&x=1"),
    ("secret: abc", "***"),
    ("password=abc", "***"),
    ("AccountKey=abc;x=1", "***;x=1"),
    ("client-key-data: LS0tLS1CRUdJTg==", "***"),
    ("there is no secret here, and no password", "there is no secret here, and no password"),
    ("https://h/path@1.2/x and 10.0.0.1:443", "https://h/path@1.2/x and 10.0.0.1:443"),
    ("", ""),
]
CASE_IDS = [str(number) for number in range(len(CASES))]


@pytest.mark.parametrize(("text", "expected"), CASES, ids=CASE_IDS)
def test_bundles_and_reports_mask_the_same_secrets(text: str, expected: str) -> None:
    assert redact_output(text) == expected
    assert redact_tokens(text) == expected
    assert redact_output(expected) == expected, "text that is masked already stays as it is"


def test_a_query_loses_its_signature_or_all_that_it_has() -> None:
    url = "get https://h/c?sv=1&sig=a%2Fb%3D&se=2 failed"
    assert redact_output(url) == "get https://h/c?sv=1&sig=***&se=2 failed"
    escaped = "https://h/c?sv=1\\u0026sig=abc\\u0026se=2"  # as JSON may write it
    assert redact_output(escaped) == "https://h/c?sv=1\\u0026sig=***\\u0026se=2"
    assert redact_output(url, queries=True) == redact_tokens(url) == "get https://h/c?*** failed"


def test_redact_removes_only_secret_parts_of_text() -> None:
    assert redact("https://example.com/a?x=1#y b") == "https://example.com/a?*** b"
    assert redact(f"join with {TOKEN}") == "join with ***"
    assert redact("https://a/b@c") == "https://a/b@c"
    assert redact("http://me:word@proxy, http://@proxy") == "http://***@proxy, http://***@proxy"
    assert redact("password=abc") == "password=abc"
    assert redact(None) is None


def test_values_that_are_known_are_masked_the_longest_first() -> None:
    assert redact_values("abcd abcdef abc", ("abcd", "abcdef", "abc")) == "*** *** abc"
