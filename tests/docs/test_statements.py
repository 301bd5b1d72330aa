"""Tests that each statement of the design documents and each step of a first day is shown by existing tests."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
STATEMENTS = yaml.safe_load((ROOT / "tests/documents/statements.yaml").read_text())
EXPECTED = [f"A{number}" for number in range(1, 16)] + [f"B{number}" for number in range(1, 19)] + ["C"]


@pytest.mark.parametrize("name", EXPECTED)
def test_statement_is_shown_by_existing_tests(name: str) -> None:
    tests = STATEMENTS[name]["tests"]

    assert tests
    for each in tests:
        file, _, function = each.partition("::")
        assert f"def {function.partition('[')[0]}(" in (ROOT / file).read_text(), each
