"""The list of mutants: each changes existing code, and names tests of `make test`."""

from __future__ import annotations

from pathlib import Path

import pytest
from scripts.mutants import MUTANTS, ROOT, Mutant

from tests.tiers import FULL_DIRECTORIES


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.promise)
def test_mutant_changes_code_and_names_tests_of_make_test(mutant: Mutant) -> None:
    assert (ROOT / mutant.file).read_text().count(mutant.code) == 1
    assert mutant.broken != mutant.code
    assert (ROOT / mutant.tests).exists()
    assert not any(Path(mutant.tests).is_relative_to(Path("tests", name)) for name in FULL_DIRECTORIES)
