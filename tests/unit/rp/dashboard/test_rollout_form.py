"""Tests of the form that starts a roll-out: the body that it means, and errors at their fields."""

from __future__ import annotations

import pytest

from aks_flex_rp.arm.errors import ArmError, Problem, invalid_request
from aks_flex_rp.dashboard import rollout_form
from aks_flex_rp.dashboard.rollout_form import APPROVAL, DEFAULTS, parse_rollout_form, rejection_errors
from aks_flex_rp.dashboard.setting_fields import FieldError
from aks_flex_rp.rollouts.spec import RolloutProperties, parse_rollout

FORM = {**DEFAULTS, "name": "r1", "revision": "3"}


def test_defaults_of_the_form_are_those_of_the_api() -> None:
    parsed = parse_rollout_form(FORM)
    assert not parsed.errors
    assert parse_rollout(parsed.document) == RolloutProperties(revision=3)


def test_all_fields_reach_the_body() -> None:
    form = FORM | {
        "waves": "1\n 50%, 100%",
        "canarySelector": "site=lab\r\nring=0",
        "nodeSelector": "tier=edge",
        "failureDomain": "site=2",
        "soakSeconds": "5m",
        "onFailure": "halt",
        "maxFailures": "2",
        "approval": "yes",
        "gates": '[{"name": "g", "webhook": {"receiver": "r"}}]',
        "allowDowngrade": "yes",
        "replaceActive": "yes",
    }
    properties = parse_rollout_form(form).document["properties"]
    assert properties["waves"] == ["1", "50%", "100%"]
    assert properties["canarySelector"] == {"site": "lab", "ring": "0"}
    assert properties["nodeSelector"] == {"tier": "edge"}
    assert properties["failureDomain"] == {"label": "site", "maxUnavailable": "2"}
    assert (properties["soakSeconds"], properties["onFailure"], properties["maxFailures"]) == (300, "halt", 2)
    assert [each["name"] for each in properties["gates"]] == ["g", APPROVAL["name"]]
    assert properties["allowDowngrade"]
    assert properties["replaceActive"]
    assert isinstance(parse_rollout({"properties": properties}), RolloutProperties)


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ("soakSeconds", "1.5"),
        ("maxFailures", "٣"),
        ("revision", "newest"),
        ("canarySelector", "site"),
        ("canarySelector", "a=1\na=2"),
        ("nodeSelector", "=x"),
        ("failureDomain", "=2"),
        ("gates", "{}"),
        ("gates", "[" * 100_000),
    ],
)
def test_unreadable_field_is_an_error_at_the_field(field: str, text: str) -> None:
    assert {each.field for each in parse_rollout_form({**FORM, field: text}).errors} == {field}


def test_problems_of_the_api_are_at_their_fields() -> None:
    targets = {
        "properties.waves[0]": "waves",
        "properties.maxUnavailable": "maxUnavailable",
        "properties.failureDomain.maxUnavailable": "failureDomain",
        "properties.canarySelector.site": "canarySelector",
        "properties.nodeTimeoutSeconds": "nodeTimeoutSeconds",
        "properties.gates[0].webhook.receiver": "gates",
    }
    error = invalid_request([Problem(target, "Wrong.") for target in targets])
    found = rejection_errors(error)
    assert [each.field for each in found] == list(targets.values())
    assert found[-1].message == "[0].webhook.receiver: Wrong."


def test_conflicts_are_at_their_fields_and_others_are_raised() -> None:
    assert rejection_errors(ArmError(409, "RevisionBarred", "It failed.")) == [FieldError("revision", "It failed.")]
    assert rejection_errors(ArmError(409, "RolloutActive", "Wait.")) == [FieldError("replaceActive", "Wait.")]
    with pytest.raises(ArmError):
        rejection_errors(ArmError(403, "AuthorizationFailed", "No."))


def test_suggested_name_is_free() -> None:
    assert rollout_form.suggested_name(3, ()) == "revision-3"
    assert rollout_form.suggested_name(3, {"revision-3", "revision-3-2"}) == "revision-3-3"
