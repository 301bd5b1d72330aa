"""Tests of the options of `rollout create`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from aks_flex_node.api.node_changes import NodeOptions, OptionError
from aks_flex_node.api.rollout_options import invalid_name, rollout_properties

GATES = [{"name": "manager", "approval": {}}]


def properties(content: object = GATES, **given: Any) -> dict[str, Any]:
    """Returns the properties of options. `content` is that of the file of gates."""
    return rollout_properties(NodeOptions(given), lambda _, option: {"--gates-file": content}[option])


def test_no_options_leave_all_properties_to_the_service() -> None:
    assert properties() == {}


def test_options_become_properties() -> None:
    assert properties(
        revision=3,
        selector=["environment=prod", "example.com/line="],
        waves=["1", "10%", "100%"],
        canary=["canary=true"],
        max_unavailable="3",
        failure_domain="topology.kubernetes.io/zone=2",
        soak="10m",
        max_failures=0,
        on_failure="halt",
        node_timeout="2h",
        stage_timeout="0",
        gates=Path("gates.yaml"),
        allow_downgrade=True,
        replace_active=True,
    ) == {
        "revision": 3,
        "nodeSelector": {"environment": "prod", "example.com/line": ""},
        "waves": ["1", "10%", "100%"],
        "canarySelector": {"canary": "true"},
        "maxUnavailable": "3",
        "failureDomain": {"label": "topology.kubernetes.io/zone", "maxUnavailable": "2"},
        "soakSeconds": 600,
        "maxFailures": 0,
        "onFailure": "halt",
        "nodeTimeoutSeconds": 7200,
        "stageTimeoutSeconds": 0,
        "gates": GATES,
        "allowDowngrade": True,
        "replaceActive": True,
    }


@pytest.mark.parametrize(("text", "seconds"), [("0", 0), ("90", 90), ("90s", 90), ("5m", 300), ("1d", 86400)])
def test_durations_are_seconds_or_have_a_unit(text: str, seconds: int) -> None:
    assert properties(soak=text) == {"soakSeconds": seconds}


def test_failure_domain_without_number_leaves_the_limit_to_the_service() -> None:
    assert properties(failure_domain="site") == {"failureDomain": {"label": "site"}}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"soak": "10 minutes"}, "soak: '10 minutes' is not a duration"),
        ({"node_timeout": "-1"}, "node-timeout: '-1' is not a duration"),
        ({"stage_timeout": ""}, "stage-timeout: '' is not a duration"),
        ({"selector": ["prod"]}, "selector: 'prod' is not a label"),
        ({"canary": ["=true"]}, "canary: '=true' is not a label"),
        ({"selector": ["a=b", "a=c"]}, "selector: 'a=c' contradicts a=b"),
        ({"failure_domain": "site="}, "failure-domain: 'site=' is not a label"),
        ({"failure_domain": "=2"}, "failure-domain: '=2' is not a label"),
    ],
)
def test_invalid_option_is_named_with_its_value(given: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError) as refused:
        properties(**given)

    assert str(refused.value) == message
    assert refused.value.hint


def test_gates_are_a_list_or_in_a_mapping() -> None:
    for content in (GATES, {"gates": GATES}):
        assert properties(content, gates="gates.yaml") == {"gates": GATES}


@pytest.mark.parametrize("content", [None, "approval", {}, {"name": "manager"}, ["approval"]])
def test_file_without_list_of_gates_is_refused(content: object) -> None:
    with pytest.raises(OptionError, match=r"gates-file: 'gates.yaml' is not a list of gates"):
        properties(content, gates="gates.yaml")


def test_a_name_that_is_not_possible_is_explained() -> None:
    assert invalid_name("k8s-1-36") is None
    for name in ("Bad", "a_b", "a/../b", "-a", "a-", "", "a" * 41):
        assert "lowercase letters" in str(invalid_name(name))
