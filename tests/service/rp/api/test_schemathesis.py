"""Tests with requests that schemathesis generates from the contract: no server errors, and valid responses."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.service.rp.api.schemathesis_run import fuzz

if TYPE_CHECKING:
    from pathlib import Path

    from tests.service.rp.api.service_harness import Running


@pytest.mark.parametrize(
    "database", ["sqlite", pytest.param("postgres", marks=pytest.mark.long)], indirect=True, scope="session"
)
def test_fuzzed_requests_get_responses_that_match_the_contract(service: Running, tmp_path: Path) -> None:
    said = fuzz(service, tmp_path, examples=2)

    assert said.ok, said.out + said.err
