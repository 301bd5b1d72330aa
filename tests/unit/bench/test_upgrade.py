"""Tests of the longest interruption of a pod, computed from the times of its responses."""

from __future__ import annotations

import pytest

from bench.upgrade.__main__ import longest


@pytest.mark.parametrize(
    ("moments", "gap"),
    [
        ([9.5, 10.0, 11.5, 12.0, 13.5], 1.5),
        ([1.0, 9.5, 10.0, 10.5, 13.5], 3.0),  # a gap long before the upgrade is ignored
        ([10.0, 10.5], 3.5),  # no further response
        ([], 4.0),
    ],
)
def test_longest_gap_during_upgrade_is_found_at_any_position(moments: list[float], gap: float) -> None:
    assert longest(moments, began=10.0, ended=14.0) == gap
