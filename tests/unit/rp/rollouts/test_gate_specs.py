"""Tests of the gates in a plan: what is accepted, and what is refused with which message."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from aks_flex_rp.rollout_settings import RolloutSettings
from aks_flex_rp.rollouts.gate_specs import Gates, GateSpec, check_gates
from aks_flex_rp.rollouts.spec import parse_rollout
from tests.unit.rp.rollouts.gate_builders import CONTAINER, job_gate, prometheus_gate, webhook_gate

APPROVAL = {"name": "person", "approval": {}}
SETTINGS = RolloutSettings.model_validate(
    {
        "webhooks": [
            {"name": name, "url": "https://gates.example.com/", "secretFile": "/etc/secret"} for name in ("b", "a")
        ],
        "prometheus": [{"name": "main", "url": "https://prometheus.example.com/"}],
    }
)
READ = TypeAdapter(Gates)


def problem(*gates: dict[str, Any]) -> str:
    found = parse_rollout({"properties": {"gates": list(gates)}})
    assert isinstance(found, list)
    return f"{found[0].target}: {found[0].message}"


def test_each_kind_of_gate_is_read_with_its_defaults() -> None:
    gates = READ.validate_python([job_gate(), webhook_gate(), prometheus_gate(), APPROVAL])
    assert [each.kind for each in gates] == ["job", "webhook", "prometheus", "approval"]
    assert {each.timeout_seconds for each in gates} == {3600}
    query = gates[2].prometheus
    assert query
    assert (query.successes, query.interval_seconds, query.threshold) == (3, 10, 1.0)


def test_stored_gate_is_read_back_unchanged() -> None:
    for each in (job_gate(), webhook_gate(timeoutSeconds=5), prometheus_gate(), APPROVAL):
        spec = GateSpec.model_validate(each)
        assert GateSpec.model_validate(spec.model_dump(mode="json", exclude_none=True)) == spec


def test_gate_must_have_exactly_one_kind() -> None:
    one = "properties.gates[0]: A gate must have exactly one of job, webhook, prometheus and approval."
    assert problem({"name": "none"}) == one
    assert problem({**webhook_gate(), "approval": {}}) == one


def test_gates_must_have_different_names() -> None:
    assert "two gates of the name ask" in problem(webhook_gate(), webhook_gate("other"))


def test_at_most_ten_gates_are_accepted() -> None:
    assert "at most 10 items" in problem(*({**APPROVAL, "name": f"gate-{number}"} for number in range(11)))


@pytest.mark.parametrize(
    ("gate", "message"),
    [
        (webhook_gate(timeoutSeconds=0), "timeoutSeconds: The value should be greater than or equal to 1."),
        (webhook_gate(timeoutSeconds=604801), "timeoutSeconds: The value should be less than or equal to 604800."),
        (webhook_gate(timeoutSeconds="60"), "timeoutSeconds: The value should be a valid integer."),
        (webhook_gate(url="https://evil.example"), "url: Unknown property."),
        (prometheus_gate(comparison="=~"), "prometheus.comparison: The value must be one of"),
        (prometheus_gate(threshold=float("nan")), "prometheus.threshold: The value should be a finite number."),
        (prometheus_gate(query=""), "prometheus.query: "),
        (prometheus_gate(query="x" * 4097), "prometheus.query: "),
        (prometheus_gate(successes=101), "prometheus.successes: "),
        (prometheus_gate(intervalSeconds=0), "prometheus.intervalSeconds: "),
        (prometheus_gate({"timeoutSeconds": 20}), "timeoutSeconds (20) is too short: successes and intervalSeconds"),
        ({**APPROVAL, "name": "Person"}, "name: The value does not match the pattern"),
        ({**APPROVAL, "approval": {"by": "ann"}}, "approval.by: Unknown property."),
    ],
)
def test_gate_out_of_bounds_is_refused(gate: dict[str, Any], message: str) -> None:
    assert message in problem(gate)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"nodeName": "edge-9"}, "spec.nodeName is not allowed here"),
        ({"nodeSelector": {"a": "b"}}, "spec.nodeSelector is not allowed here"),
        ({"affinity": {"nodeAffinity": {"x": {}}}}, "spec.affinity.nodeAffinity is not allowed here"),
        ({"affinity": ["x"]}, "spec.affinity.nodeAffinity is not allowed here"),
        ({"restartPolicy": "OnFailure"}, "spec.restartPolicy must be Never"),
        ({"tolerations": {"a": "b"}}, "spec.tolerations must be a list"),
        ({"containers": []}, "must have spec.containers with at least one container"),
        ({"containers": [{**CONTAINER, "args": ["x" * 20_000]}]}, "must be at most 16384 bytes of JSON"),
    ],
)
def test_template_that_the_gate_cannot_run_is_refused(spec: dict[str, Any], message: str) -> None:
    assert message in problem(job_gate(**spec))


@pytest.mark.parametrize(
    "template", [{}, {"spec": None}, {"metadata": [], "spec": {}}, {"metadata": {"labels": "x"}}, {"kind": "Pod"}]
)
def test_other_documents_than_pod_templates_are_refused(template: dict[str, Any]) -> None:
    assert "job.template" in problem({"name": "x", "job": {"namespace": "gates", "template": template}})


def test_unknown_receiver_and_server_are_refused_with_known_names() -> None:
    gates = READ.validate_python([webhook_gate("a"), webhook_gate("c") | {"name": "c"}, prometheus_gate(server="b")])
    found = check_gates(gates, SETTINGS)
    assert [each.target for each in found] == [
        "properties.gates[1].webhook.receiver",
        "properties.gates[2].prometheus.server",
    ]
    assert found[0].message.startswith("The service has no receiver 'c'. It knows a, b. An administrator adds it")
    assert "It knows main." in found[1].message
    assert "It knows none." in check_gates([gates[0]], RolloutSettings())[0].message


@pytest.mark.parametrize(
    "entry",
    [
        {"name": "a", "url": "http://gates.example.com/"},
        {"name": "a", "url": "https://ann:word@gates.example.com/"},
        {"name": "A b", "url": "https://gates.example.com/"},
    ],
)
def test_settings_refuse_unsafe_urls_and_names(entry: dict[str, str]) -> None:
    with pytest.raises(ValidationError):
        RolloutSettings.model_validate({"prometheus": [entry]})


def test_settings_refuse_the_same_name_twice() -> None:
    entry = {"name": "a", "url": "https://gates.example.com/"}
    with pytest.raises(ValidationError, match="same name twice"):
        RolloutSettings.model_validate({"prometheus": [entry, entry]})
