"""Tests of the create form: request body, values kept between steps, and errors at their fields."""

from __future__ import annotations

from typing import Any

import pytest

from aks_flex_rp.arm.errors import ArmError, ErrorDetail, precondition_failed
from aks_flex_rp.arm.ids import ClusterId
from aks_flex_rp.clusters.facts import ClusterFacts
from aks_flex_rp.dashboard.create_page import first_invalid_step, navigate, rejected_form, validate_draft
from aks_flex_rp.dashboard.node_draft import (
    FIELDS,
    MAX_ROWS,
    REVIEW,
    SECRET,
    DraftError,
    NodeDraft,
    form_errors,
    locate_draft_errors,
    parse_draft,
)
from aks_flex_rp.dashboard.page_request import MAX_FIELDS
from aks_flex_rp.nodes.context import ClusterInfo

CLIENT = "6dae42f8-4368-4678-94ff-3960e28e3630"
PLANT = ClusterId("12345678-1234-1234-1234-123456789abc", "Edge", "Plant")
BASE = {"cluster": PLANT.key, "name": "press-1", "method": "bootstrapToken", "drift": "log"}
PRINCIPAL = {**BASE, "method": "servicePrincipal", "kubelet": "bootstrapToken", "sp-client": CLIENT, "monitor": "yes"}
SECRET_ONE = "a secret of somebody"


def known(aad: bool = True) -> ClusterInfo:
    return ClusterInfo(PLANT, ClusterFacts("1.34.4", "https://api.example:443", "", "10.0.0.10", aad=aad))


def errors_by_field(form: dict[str, str], aad: bool = True) -> dict[str, str]:
    """Returns the errors by field; those of the form take precedence over the API's."""
    found = parse_draft(form)
    both = [*locate_draft_errors(found, validate_draft(found, known(aad))), *form_errors(found, {PLANT.key})]
    return {each.field: each.message for each in both if each.field != SECRET}


def properties(form: dict[str, str], secret: str = "") -> Any:
    return parse_draft(form).body(secret)["properties"]


def test_draft_with_bootstrap_token_has_no_identity_and_is_managed() -> None:
    made = properties({**BASE, "monitor": "yes"})
    assert (made["continuousMonitoring"], made["kubernetesAuth"]) == (True, {"method": "bootstrapToken"})
    assert "azureAuth" not in made
    assert properties({**BASE, "monitor": ""})["continuousMonitoring"] is False


@pytest.mark.parametrize(
    ("form", "policy"),
    [({**BASE, **NodeDraft().values}, None), ({**PRINCIPAL, "drift": "repair"}, None), (PRINCIPAL, "log")],
)
def test_draft_uses_documented_drift_policy_unless_another_is_chosen(
    form: dict[str, str], policy: str | None
) -> None:
    assert properties(form).get("nodeConfig", {}).get("driftPolicy") == policy


def test_draft_service_principal_has_secret_or_certificate() -> None:
    made = properties(PRINCIPAL, SECRET_ONE)
    assert made["azureAuth"]["servicePrincipal"] == {"clientId": CLIENT, "clientSecret": SECRET_ONE}
    made = properties({**PRINCIPAL, "sp-proof": "certificate", "sp-tenant": "other.example"}, SECRET_ONE)
    assert made["azureAuth"]["servicePrincipal"] == {
        "clientId": CLIENT,
        "certificateOnMachine": True,
        "clientTenant": "other.example",
    }


@pytest.mark.parametrize("method", ["managedIdentity", "arc"])
def test_draft_may_omit_identity_details_of_machine(method: str) -> None:
    made = properties({**BASE, "method": method, "kubelet": "exec"})
    assert made["azureAuth"] == {"method": method}
    assert made["kubernetesAuth"] == {"method": "exec"}


def test_draft_keeps_but_does_not_submit_fields_of_other_methods() -> None:
    form = {**PRINCIPAL, "method": "managedIdentity", "mi-client": CLIENT}
    assert properties(form)["azureAuth"] == {"method": "managedIdentity", "managedIdentity": {"clientId": CLIENT}}
    assert dict(parse_draft(form).carried(1))["sp-client"] == CLIENT


@pytest.mark.parametrize("step", FIELDS)
def test_each_draft_step_carries_other_fields_except_secret(step: int) -> None:
    form = {**PRINCIPAL, "pods": "50", SECRET: SECRET_ONE, "label-key-0": "a", "label-value-0": "b"}
    form |= {"taint-key-0": "t", "taint-value-0": "", "taint-effect-0": "NoExecute"}
    found = parse_draft(form)
    shown = {name: found[name] for name in FIELDS[step] if found[name]} | (dict(found.cells()) if step == 4 else {})
    assert parse_draft({**shown, **dict(found.carried(step))}) == found
    assert SECRET_ONE not in str(found)


def test_draft_with_maximum_rows_is_within_form_field_limit() -> None:
    most = NodeDraft(labels=(("k", "v"),) * MAX_ROWS["label"], taints=(("k", "v", "NoExecute"),) * MAX_ROWS["taint"])
    others = sum(map(len, FIELDS.values()))
    assert len(list(most.cells())) + others + len(("csrf", "step", "to")) < MAX_FIELDS
    assert most.with_row("label") == most


@pytest.mark.parametrize("to", ["next", "", "add-nothing", "drop-label-x", "drop-label-", "create"])
def test_other_button_values_do_not_change_rows(to: str) -> None:
    assert navigate(parse_draft(BASE), 3, to) is None


def test_valid_draft_has_no_errors() -> None:
    assert errors_by_field(BASE) == errors_by_field(PRINCIPAL) == {}


@pytest.mark.parametrize(
    ("wrong", "field", "said"),
    [
        ({"cluster": "elsewhere"}, "cluster", "Select a cluster"),
        ({"name": ""}, "name", "Enter a node name"),
        ({"name": "Press"}, "name", "Use press"),
        ({"method": "magic"}, "method", "Select an authentication method"),
        ({"sp-client": ""}, "sp-client", "required"),
        ({"sp-client": "me"}, "sp-client", "is not an ID of Entra ID"),
        ({"sp-tenant": "a b"}, "sp-tenant", "not allowed in Azure names"),
        ({"kubelet": "magic"}, "kubelet", "is not one of"),
        ({"kubernetes": "1.35.0"}, "kubernetes", "newer than the cluster's"),
        ({"runc": "new"}, "runc", "is not a version"),
        ({"pods": "many"}, "pods", "integer"),
        ({"pods": "9999"}, "pods", "from 1 to 1024"),
        ({"drift": "ignore"}, "drift", "is not one of"),
        ({"label-value-0": "alone"}, "label-key-0", "Enter a key"),
        ({"label-key-0": "-a"}, "label-key-0", "is not a valid key"),
        ({"label-key-0": "a", "label-value-0": "no spaces"}, "label-value-0", "is not a label value"),
        ({"label-key-0": "a", "label-key-1": "a"}, "label-key-1", "duplicated"),
        ({"label-key-0": "x.y/z", "label-key-1": "kubernetes.io/role"}, "label-key-1", "is reserved for the cluster"),
        ({"taint-value-0": "alone"}, "taint-key-0", "Enter a key"),
        ({"taint-key-0": "a", "taint-effect-0": "Never"}, "taint-effect-0", "is not one of"),
        ({"taint-key-0": "a", "taint-value-0": "b c", "taint-effect-0": "NoExecute"}, "taint-value-0", "label value"),
    ],
)
def test_invalid_draft_value_is_reported_at_its_field(wrong: dict[str, str], field: str, said: str) -> None:
    found = errors_by_field({**PRINCIPAL, **wrong})
    assert said in found[field]
    assert "pattern" not in found[field]


def test_label_key_and_value_errors_are_both_reported() -> None:
    found = errors_by_field({**BASE, "label-key-0": "-", "label-value-0": "-"})
    assert set(found) == {"label-key-0", "label-value-0"}


def test_taint_error_is_mapped_to_its_row_after_row_without_key() -> None:
    found = errors_by_field({**BASE, "taint-value-0": "x", "taint-key-1": "-", "taint-effect-1": "NoExecute"})
    assert set(found) == {"taint-key-0", "taint-key-1"}


def test_cluster_without_entra_accepts_only_bootstrap_token() -> None:
    assert "does not accept Entra ID" in errors_by_field({**PRINCIPAL, "kubelet": "exec"}, aad=False)["kubelet"]


def test_monitored_node_requires_identity_details() -> None:
    form = {**BASE, "method": "managedIdentity", "kubelet": "bootstrapToken"}
    assert "identity" in errors_by_field({**form, "monitor": "yes"})["monitor"]
    assert errors_by_field(form) == {}
    assert "clientId or principalId" in errors_by_field({**form, "kubelet": "exec"})["mi-client"]


def test_first_step_with_errors_is_shown_with_all_its_errors() -> None:
    found = [
        DraftError("label-key-0", "b"),
        DraftError("pods", "a"),
        DraftError("kubernetes", "c"),
        DraftError("", "d"),
    ]
    form = first_invalid_step(parse_draft(BASE), found)
    assert form is not None
    assert form.step == 3
    assert [each.message for each in form.errors] == ["a", "c"]


def test_api_errors_lead_to_the_step_of_the_invalid_field() -> None:
    details = (
        ErrorDetail("x", "too old", "properties.versions.runc"),
        ErrorDetail("x", "odd", "properties.nodeConfig.vpn"),
    )
    form = rejected_form(parse_draft(BASE), ArmError(400, "InvalidRequestContent", "2 problems", details=details))
    assert (form.step, form.status) == (3, 400)
    form = rejected_form(parse_draft(BASE), ArmError(503, "ServiceUnavailable", "Plant does not answer."))
    assert (form.step, form.status) == (REVIEW, 503)
    assert [each.message for each in form.errors] == ["Plant does not answer."]
    form = rejected_form(parse_draft(BASE), precondition_failed("press-1"))
    assert (form.step, form.wrong("name")[:8]) == (1, "The node")


@pytest.mark.parametrize("number", ["9" * 5000, "40", "-1", "", "\u00b2", "\u0663"])
def test_invalid_row_number_is_not_removed(number: str) -> None:
    assert navigate(NodeDraft(labels=(("a", "b"),)), 4, f"drop-label-{number}") is None
