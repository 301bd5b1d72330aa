"""Tests of validation: every body of the table gives the result that its file specifies."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from aks_flex_rp.arm.errors import Problem
from aks_flex_rp.resource import validation
from aks_flex_rp.resource.properties import Properties
from aks_flex_rp.resource.rules import ValidationContext
from aks_flex_rp.resource.validation import MAX_BODY_BYTES, MAX_DEPTH, MAX_VALUES, DesiredNode, parse_body
from tests.unit.rp.resource.body_cases import NAME, Case, cases

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.mark.parametrize("case", cases("valid"), ids=str)
def test_valid_body_is_accepted(case: Case) -> None:
    wanted = validation.validate_body(copy.deepcopy(case.body), NAME, case.beside)

    assert isinstance(wanted, DesiredNode), wanted


@pytest.mark.parametrize("case", cases("invalid"), ids=str)
def test_exactly_the_errors_of_invalid_body_are_reported(case: Case) -> None:
    problems = validation.validate_body(copy.deepcopy(case.body), NAME, case.beside)

    assert isinstance(problems, list), "it was accepted"
    assert sorted(each.target for each in problems) == sorted(case.targets), problems
    for problem in problems:
        assert problem.message.endswith((".", "?")), problem
        assert "s3cret" not in problem.message


@pytest.mark.parametrize("case", cases("valid"), ids=str)
def test_normalized_body_is_accepted_again_unchanged(case: Case) -> None:
    wanted = validation.validate_body(copy.deepcopy(case.body), NAME, case.beside)
    assert isinstance(wanted, DesiredNode)
    kept = wanted.document()

    assert "s3cret" not in json.dumps(kept)
    assert "s3cret" not in repr(wanted)
    assert DesiredNode(Properties(kept)).document() == kept
    again = validation.validate_body({"properties": kept}, NAME, _knowing_the_secret(case, kept))
    assert isinstance(again, DesiredNode), again
    assert again.document() == kept


@pytest.mark.parametrize(
    ("cluster", "node", "said"),
    [
        ("1.36.3", "1.36.3", ""),
        ("1.36.3", "1.33.0", ""),
        ("1.36.3", "1.32.13", "too old for the cluster's API server (1.36.3), which supports 1.33 and later"),
        ("1.36.3", "1.36.4", "newer than the cluster's API server (1.36.3)"),
        ("1.36.3", "1.37.0", "newer than the cluster's API server (1.36.3)"),
        ("1.34.4", "1.31.14", ""),
        ("1.34.4", "1.30.14", "too old"),
        ("1.37.0", "1.37.0", ""),  # is not in the table of tested versions
    ],
)
def test_node_may_be_three_minor_versions_behind_and_never_newer(cluster: str, node: str, said: str) -> None:
    body = {"properties": {"versions": {"kubernetes": node}}}

    judged = validation.validate_body(body, NAME, ValidationContext(cluster, accepts_entra=True))

    assert isinstance(judged, DesiredNode) is (not said)
    if isinstance(judged, list):
        assert [each.target for each in judged] == ["properties.versions.kubernetes"]
        assert said in judged[0].message


@pytest.mark.parametrize(
    ("properties", "said"),
    [
        ({"nodeconfig": {}}, "Unknown property. Did you mean nodeConfig?"),
        ({"nodeConfig": {"maxpods": 5}}, "Unknown property. Did you mean maxPods?"),
        ({"qqqq": 1}, "Unknown property. Correct its name, or remove it."),
        ({"proxy": {"http": "http://a"}}, "Only the administrator of the machine can set it. Remove it."),
        (
            {"nodeConfig": {"kubelet": {"nodeStatusUpdateFrequency": "9s"}}},
            "Only the administrator of the machine can set it. Remove it.",
        ),
        (
            {"nodeConfig": {"kubelet": {"extraConfig": {"nodeStatusUpdateFrequency": "9s"}}}},
            "This option cannot be set here, because it is set by node.kubelet.nodeStatusUpdateFrequency, only by "
            "the administrator of the machine.",
        ),
        ({"versions": {"kubernetes": "1.36"}}, "'1.36' has no patch version. Use for example 1.36.0."),
        (
            {"nodeConfig": {"artifacts": {"baseURL": "ftp://mirror.example"}}},
            "The value is not a URL that starts with https:// and has a host.",
        ),
        (
            {"nodeConfig": {"updatePolicy": {"maintenanceWindow": {"days": ["Monday"]}}}},
            "A maintenance window needs a start (--window-start). "
            "The node has it as a whole, and nothing of its pool's.",
        ),
    ],
)
def test_problem_says_what_to_do(properties: dict[str, Any], said: str) -> None:
    problems = validation.validate_body({"properties": properties}, NAME, ValidationContext("1.36.3"))
    assert isinstance(problems, list)
    assert [each.message for each in problems] == [said]


def _knowing_the_secret(case: Case, kept: dict[str, dict[str, dict[str, str]]]) -> ValidationContext:
    principal = kept["azureAuth"].get("servicePrincipal", {})
    return replace(case.beside, stored_secret_client=principal.get("clientId", "").lower())


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
        (b'{"a":\n 1,}', "is not JSON: see line 2, column 4."),
    ],
)
def test_body_beyond_limits_or_malformed_is_refused(body: bytes, words: str) -> None:
    said = parse_body(body)
    assert isinstance(said, Problem)
    assert words in said.message


@pytest.mark.parametrize("text", ["https://user:pa/ss@host.example", "user:pass@host.example"])
@pytest.mark.parametrize(
    "settings",
    [
        lambda text: {"kubelet": {"serverURL": text}},
        lambda text: {"artifacts": {"baseURL": text}},
        lambda text: {"registryMirrors": {"docker.io": [text]}},
    ],
)
def test_message_about_an_address_has_no_password(settings: Callable[[str], dict[str, Any]], text: str) -> None:
    problems = validation.validate_body({"properties": {"nodeConfig": settings(text)}}, NAME, Case("", "", {}).beside)
    assert isinstance(problems, list)
    assert problems
    assert not [each for each in problems if "pa/ss" in each.message or ":pass" in each.message]


@pytest.mark.parametrize(
    ("age", "is_valid"), [("3m", True), ("8760h", True), ("2m59s", False), ("8761h", False), ("0.001ns", False)]
)
def test_age_of_unused_images_is_one_that_the_kubelet_accepts(age: str, is_valid: bool) -> None:
    body = {"properties": {"nodeConfig": {"kubelet": {"imageMaximumGCAge": age}}}}
    assert isinstance(validation.validate_body(body, NAME, Case("", "", {}).beside), DesiredNode) is is_valid
