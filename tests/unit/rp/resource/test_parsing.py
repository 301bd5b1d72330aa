"""Tests of request parsing: rejected before validation."""

from __future__ import annotations

import json

import pytest

from aks_flex_rp.arm.errors import Problem
from aks_flex_rp.resource.validation import MAX_BODY_BYTES, MAX_DEPTH, MAX_VALUES, parse_body


def nested(levels: int) -> bytes:
    return b'{"a":' * (levels - 1) + b"1" + b"}" * (levels - 1)


def labels(count: int) -> bytes:
    """Returns a body with this many values, including itself."""
    return json.dumps({str(number): number for number in range(count - 1)}).encode()


@pytest.mark.parametrize(
    "body", [nested(MAX_DEPTH), labels(MAX_VALUES), b"\xef\xbb\xbf{}", b" " * (MAX_BODY_BYTES - 2) + b"{}"]
)
def test_body_within_limits_is_parsed(body: bytes) -> None:
    assert isinstance(parse_body(body), dict)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (nested(MAX_DEPTH + 1), "nested more than 32 levels"),
        (labels(MAX_VALUES + 1), "has 5001 values. The maximum is 5000"),
        (b" " * (MAX_BODY_BYTES - 1) + b"{}", "larger than 1048576 bytes"),
        (b'{"a": 1, "a": 2}', "'a' is a duplicate name"),
        (b'{"a": NaN}', "NaN is not a JSON number"),
        (b'{"a": "\\ud800"}', "is not JSON"),
        (b"[]", "must be a JSON object"),
        (b"{", "is not JSON"),
    ],
)
def test_body_beyond_limits_or_malformed_is_refused(body: bytes, words: str) -> None:
    said = parse_body(body)
    assert isinstance(said, Problem)
    assert words in said.message
