"""Tests of validation: every body of the table gives the result that its file specifies."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from aks_flex_rp.resource import validation
from aks_flex_rp.resource.models import Properties
from aks_flex_rp.resource.validation import DesiredNode
from tests.unit.rp.resource.body_cases import NAME, Case, cases

if TYPE_CHECKING:
    from aks_flex_rp.resource.rules import ValidationContext


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
        assert problem.message.endswith("."), problem
        assert "s3cret" not in problem.message


@pytest.mark.parametrize("case", cases("valid"), ids=str)
def test_normalized_body_is_accepted_again_unchanged(case: Case) -> None:
    wanted = validation.validate_body(copy.deepcopy(case.body), NAME, case.beside)
    assert isinstance(wanted, DesiredNode)
    kept = wanted.document()

    assert "s3cret" not in json.dumps(kept)
    assert "s3cret" not in repr(wanted)
    assert DesiredNode(Properties.model_validate(kept)).document() == kept
    again = validation.validate_body({"properties": kept}, NAME, _knowing_the_secret(case, kept))
    assert isinstance(again, DesiredNode), again
    assert again.document() == kept


def _knowing_the_secret(case: Case, kept: dict[str, dict[str, dict[str, str]]]) -> ValidationContext:
    principal = kept["azureAuth"].get("servicePrincipal", {})
    return replace(case.beside, stored_secret_client=principal.get("clientId", "").lower())
