"""Tests of `$filter`: syntax and results."""

from __future__ import annotations

from typing import Any

import pytest

from aks_flex_rp.arm.errors import Problem
from aks_flex_rp.nodes import queries

NODE: dict[str, Any] = {
    "properties": {
        "nodeConfig": {"labels": {"site": "o'hare", "example.com/a": "b"}},
        "status": {"conditions": [{"type": "Ready", "status": "True"}], "joinState": "Joined"},
    }
}


def holds(text: str) -> bool:
    parsed = queries.parse_filter(text)
    assert not isinstance(parsed, Problem), parsed
    return all(each.matches(NODE, "1.34.4") for each in parsed)


@pytest.mark.parametrize(
    "text",
    [
        "ready eq 'True'",
        "  ready   eq   'True'  ",
        "Ready EQ 'True' And JOINSTATE ne 'Failed'",
        "version eq '1.34.4'",
        "labels/site eq 'o''hare'",
        "labels/example.com/a eq 'b'",
        "labels/none ne 'x'",
    ],
)
def test_matching_filter_selects_node(text: str) -> None:
    assert holds(text)


@pytest.mark.parametrize(
    "text",
    ["ready eq 'true'", "version ne '1.34.4'", "labels/Site eq 'o''hare'", "ready eq 'True' and version eq ''"],
)
def test_non_matching_filter_does_not_select_node(text: str) -> None:
    assert not holds(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ready",
        "ready eq True",
        'ready eq "True"',
        "ready eq 'True",
        "ready eq 'True' and",
        "ready eq 'True' or version eq '1'",
        "ready eq 'True' ready eq 'True'",
        "ready gt 'True'",
        "name eq 'x'",
        "labels eq 'x'",
        "labels/ eq 'x'",
        "status/ready eq 'x'",
        "(ready eq 'True')",
    ],
)
def test_invalid_filter_is_reported_as_query_error(text: str) -> None:
    parsed = queries.parse_filter(text)

    assert isinstance(parsed, Problem)
    assert parsed.target == "$filter"
    assert "joinState" in parsed.message
