"""How long a pod did not answer, from when it did."""

from __future__ import annotations

import pytest

from bench.upgrade.__main__ import longest


@pytest.mark.parametrize(
    ("moments", "gap"),
    [
        ([9.5, 10.0, 11.5, 12.0, 13.5], 1.5),
        ([1.0, 9.5, 10.0, 10.5, 13.5], 3.0),  # what was long before the upgrade says nothing of it
        ([10.0, 10.5], 3.5),  # it never answered again
        ([], 4.0),
    ],
)
def test_longest_gap_during_upgrade_is_found_at_any_position(moments: list[float], gap: float) -> None:
    assert longest(moments, began=10.0, ended=14.0) == gap
