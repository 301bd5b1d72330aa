"""Tests of the options of `rollout create`."""

from __future__ import annotations

import pytest

from aks_flex_node.api.rollout_options import (
    RolloutOptionError,
    RolloutOptions,
    invalid_name,
    parse_gates,
    rollout_properties,
)


def test_no_options_leave_all_properties_to_the_service() -> None:
    assert rollout_properties(RolloutOptions()) == {}


def test_options_become_properties() -> None:
    options = RolloutOptions(
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
        gates=[{"name": "manager", "approval": {}}],
        allow_downgrade=True,
        replace_active=True,
    )

    assert rollout_properties(options) == {
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
        "gates": [{"name": "manager", "approval": {}}],
        "allowDowngrade": True,
        "replaceActive": True,
    }


@pytest.mark.parametrize(("text", "seconds"), [("0", 0), ("90", 90), ("90s", 90), ("5m", 300), ("1d", 86400)])
def test_durations_are_seconds_or_have_a_unit(text: str, seconds: int) -> None:
    assert rollout_properties(RolloutOptions(soak=text)) == {"soakSeconds": seconds}


def test_failure_domain_without_number_leaves_the_limit_to_the_service() -> None:
    assert rollout_properties(RolloutOptions(failure_domain="site")) == {"failureDomain": {"label": "site"}}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (RolloutOptions(soak="10 minutes"), "soak: '10 minutes' is not a duration"),
        (RolloutOptions(node_timeout="-1"), "node-timeout: '-1' is not a duration"),
        (RolloutOptions(stage_timeout=""), "stage-timeout: '' is not a duration"),
        (RolloutOptions(selector=["prod"]), "selector: 'prod' is not a label"),
        (RolloutOptions(canary=["=true"]), "canary: '=true' is not a label"),
        (RolloutOptions(selector=["a=b", "a=c"]), "selector: 'a=c' contradicts a=b"),
        (RolloutOptions(failure_domain="site="), "failure-domain: 'site=' is not a label"),
        (RolloutOptions(failure_domain="=2"), "failure-domain: '=2' is not a label"),
        (RolloutOptions(failure_domain="site=x"), "failure-domain: 'site=x' has the limit 'x', which is no share"),
        (RolloutOptions(failure_domain="site=0"), "failure-domain: 'site=0' has the limit '0', which is no share"),
        (RolloutOptions(soak="8d"), "soak: '8d' is too short or too long"),
        (RolloutOptions(node_timeout="1s"), "node-timeout: '1s' is too short or too long"),
        (RolloutOptions(max_unavailable="0%"), "max-unavailable: '0%' is not a share of the nodes"),
        (RolloutOptions(waves=["ten", "100%"]), "wave: 'ten' is not a share of the nodes"),
        (RolloutOptions(waves=["150%"]), "wave: '150%' is not a share of the nodes"),
        (RolloutOptions(waves=["1", "50%"]), "wave: '50%' leaves nodes out"),
    ],
)
def test_invalid_option_is_named_with_its_value(options: RolloutOptions, message: str) -> None:
    with pytest.raises(RolloutOptionError) as refused:
        rollout_properties(options)

    assert str(refused.value) == message
    assert refused.value.hint


def test_gates_are_a_list_or_in_a_mapping() -> None:
    gates = [{"name": "manager", "approval": {}}]

    assert parse_gates(gates, "gates.yaml") == gates
    assert parse_gates({"gates": gates}, "gates.yaml") == gates


@pytest.mark.parametrize("content", [None, "approval", {}, {"name": "manager"}, ["approval"]])
def test_file_without_list_of_gates_is_refused(content: object) -> None:
    with pytest.raises(RolloutOptionError, match=r"gates-file: 'gates.yaml' is not a list of gates"):
        parse_gates(content, "gates.yaml")


def test_a_name_that_is_not_possible_is_explained() -> None:
    assert invalid_name("k8s-1-36") is None
    for name in ("Bad", "a_b", "a/../b", "-a", "a-", "", "a" * 41):
        assert "lowercase letters" in str(invalid_name(name))
