"""Tests of the form of a pool: template to fields and back, errors by field, and the preview."""

from __future__ import annotations

from typing import Any

import pytest

from aks_flex_rp.arm.errors import ArmError, Problem, invalid_request
from aks_flex_rp.dashboard import pool_form
from aks_flex_rp.dashboard.edit_form import FieldError
from aks_flex_rp.store.pool_model import Pool

TAINT = {"key": "edge", "value": "true", "effect": "NoSchedule"}
TEMPLATE: dict[str, Any] = {
    "continuousMonitoring": True,
    "azureAuth": {"method": "arc", "arc": {"location": "westeurope"}},
    "versions": {"kubernetes": "1.34.4"},
    "nodeConfig": {"labels": {"site": "north"}, "taints": [TAINT], "registryMirrors": {"a": ["https://b"]}},
}


def pool(template: dict[str, Any], description: str = "", number: int = 1) -> Pool:
    return Pool("plant", "edge", template, number, description)


@pytest.mark.parametrize("description", ["", "Pumps"])
@pytest.mark.parametrize("template", [{}, TEMPLATE])
def test_unmodified_form_keeps_the_pool(template: dict[str, Any], description: str) -> None:
    document = pool_form.pool_document(pool(template, description))
    parsed = pool_form.parse_pool(pool_form.pool_values(document), document)
    assert parsed.errors == []
    assert parsed.document == document


def test_posted_secret_is_refused_and_not_shown_again() -> None:
    secret = '{"azureAuth": {"servicePrincipal": {"clientSecret": "s3cret"}}}'
    form = {**pool_form.pool_values({}), "rest": secret, "client-secret": "s3cret"}
    parsed = pool_form.parse_pool(form, {})
    assert [each.field for each in parsed.errors] == ["rest"]
    assert "s3cret" not in str(pool_form.posted_values(form)) + str(parsed.errors)


@pytest.mark.parametrize(
    ("target", "field"),
    [
        ("properties.template.nodeConfig.labels['example.com/a']", "labels"),
        ("properties.template.nodeConfig.taints[0].effect", "taints"),
        ("properties.template.versions.kubernetes", "version-kubernetes"),
        ("properties.template.azureAuth.servicePrincipal", "rest"),
        ("properties.template", ""),
        ("properties.description", "description"),
    ],
)
def test_problems_are_at_their_fields(target: str, field: str) -> None:
    [found] = pool_form.rejection_errors(invalid_request([Problem(target, "is wrong")]), {}, "edge")
    assert found.field == field
    assert "is wrong" in found.message


def test_error_that_is_not_about_the_form_is_raised() -> None:
    with pytest.raises(ArmError, match="busy"):
        pool_form.rejection_errors(ArmError(409, "Conflict", "busy"), {}, "edge")


@pytest.mark.parametrize("name", ["", "Edge", "1edge", "x" * 13, "x/apply", "a b", "<b>"])
def test_invalid_pool_name_is_an_error_at_its_field(name: str) -> None:
    assert [each.field for each in pool_form.name_errors(name)] == ["name"]


def test_valid_pool_name_is_no_error() -> None:
    assert pool_form.name_errors("edge1") == list[FieldError]()
