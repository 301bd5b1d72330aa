"""Tests of the conversion of settings to models; problems have a path and a reason and never a
library's exception.
"""

from __future__ import annotations

import math

import pytest

from aks_flex_node.agent.config.conversion import convert_settings
from aks_flex_node.agent.config.json_schema import json_schema

SECTION = "must be a section with these keys"
NUMBER = "must be a number."


@pytest.mark.parametrize(
    ("path", "value", "reason"),
    [
        ("azure", 5, SECTION),
        ("azure", {"\ud800": "a"}, SECTION),
        ("azure.servicePrincipal", "text", SECTION),
        ("azure.managedIdentity", {"unknown": 1}, SECTION),
        ("provider.endpoint", "https://api.example", "is not a setting."),
        ("node.name.first", "a", "is not a setting."),
    ],
)
def test_value_where_no_setting_is_becomes_a_problem(path: str, value: object, reason: str) -> None:
    config, problems = convert_settings({path: value, "node.name": "edge-1"})
    assert [(each.path, each.reason.startswith(reason)) for each in problems] == [(path, True)]
    assert config.node.name == "edge-1"


@pytest.mark.parametrize(
    ("path", "value", "reason"),
    [
        ("kubernetes.version", "1.36.3\n", "is not a version like 1.36.3."),
        ("kubernetes.version", "1.34.\u0664", "is not a version like 1.36.3."),
        ("provider.url", "https://api.example\n", "must be an https URL without a path"),
        ("provider.url", "http://api.example", "must be an https URL without a path"),
        (
            "updatePolicy.maintenanceWindow.start",
            "22:30\n",
            "must be a time of day with two digits each, like 09:30.",
        ),
        ("updatePolicy.maintenanceWindow.start", "24:00", "must be a time of day with two digits each, like 09:30."),
        ("paths.dataDir", "data", "must be an absolute path"),
        ("agent.joinSeconds", 86401.0, "is out of range"),
        ("agent.driftSeconds", 86401.0, "is out of range"),
        ("artifacts.stallSeconds", 86401.0, "is out of range"),
    ],
)
def test_text_matches_its_pattern_to_the_end_and_seconds_are_bounded(path: str, value: object, reason: str) -> None:
    (problem,) = convert_settings({path: value})[1]
    assert problem.reason.startswith(reason)


def test_patterns_of_the_schema_are_those_of_ecmascript() -> None:
    start = json_schema()["$defs"]["MaintenanceWindow"]["properties"]["start"]["anyOf"][0]
    assert start["pattern"] == "^([01][0-9]|2[0-3]):[0-5][0-9]$"


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (math.inf, NUMBER),
        (math.nan, NUMBER),
        ("inf", NUMBER),
        ("nan", NUMBER),
        ("1e400", NUMBER),
        ("30\u0660", NUMBER),
        ("300 s", NUMBER),
        ("", NUMBER),
        (10**400, NUMBER),
        (1e9, "is out of range"),
        ("0.5", "is out of range"),
    ],
)
def test_number_that_is_no_plain_finite_one_in_range_is_refused(value: object, reason: str) -> None:
    (problem,) = convert_settings({"agent.driftSeconds": value})[1]
    assert problem.reason.startswith(reason)


@pytest.mark.parametrize(
    ("value", "seconds"), [("300", 300.0), (" 1_000.5 ", 1000.5), ("+3e2", 300.0), ("60.", 60.0), (7, 7.0)]
)
def test_number_written_as_text_is_accepted(value: object, seconds: float) -> None:
    config, problems = convert_settings({"agent.driftSeconds": value})
    assert (config.agent.drift_seconds, problems) == (seconds, [])
