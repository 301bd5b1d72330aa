"""Every body of the table is judged as its file says."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from aks_flex_node.rp.resource import reading
from aks_flex_node.rp.resource.models import Properties
from aks_flex_node.rp.resource.reading import Wanted
from tests.unit.rp.resource.tables import NAME, Case, cases

if TYPE_CHECKING:
    from aks_flex_node.rp.resource.rules import Around


@pytest.mark.parametrize("case", cases("valid"), ids=str)
def test_a_valid_body_is_accepted(case: Case) -> None:
    wanted = reading.read(copy.deepcopy(case.body), NAME, case.beside)

    assert isinstance(wanted, Wanted), wanted


@pytest.mark.parametrize("case", cases("invalid"), ids=str)
def test_all_problems_of_a_body_are_told_and_no_others(case: Case) -> None:
    problems = reading.read(copy.deepcopy(case.body), NAME, case.beside)

    assert isinstance(problems, list), "it was accepted"
    assert sorted(each.target for each in problems) == sorted(case.targets), problems
    for problem in problems:
        assert problem.message.endswith("."), problem
        assert "s3cret" not in problem.message


@pytest.mark.parametrize("case", cases("valid"), ids=str)
def test_what_is_kept_of_a_body_is_accepted_again_and_is_the_same(case: Case) -> None:
    wanted = reading.read(copy.deepcopy(case.body), NAME, case.beside)
    assert isinstance(wanted, Wanted)
    kept = wanted.document()

    assert "s3cret" not in json.dumps(kept)
    assert "s3cret" not in repr(wanted)
    assert Wanted(Properties.model_validate(kept)).document() == kept
    again = reading.read({"properties": kept}, NAME, _knowing_the_secret(case, kept))
    assert isinstance(again, Wanted), again
    assert again.document() == kept


def _knowing_the_secret(case: Case, kept: dict[str, dict[str, dict[str, str]]]) -> Around:
    principal = kept["azureAuth"].get("servicePrincipal", {})
    return replace(case.beside, earlier_client=principal.get("clientId", "").lower())
