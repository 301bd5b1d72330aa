from __future__ import annotations

from itertools import islice

import pytest

from aks_flex_node.retry import backoff_delays


def test_backoff_delays_double_up_to_maximum_with_jitter() -> None:
    limits = [0.5, 1.0, 2.0, 3.0, 3.0]

    delays = islice(backoff_delays(first_delay=0.5, max_delay=3.0), len(limits))

    for delay, limit in zip(delays, limits, strict=True):
        assert limit / 2 <= delay <= limit


def test_default_first_backoff_delay_is_short() -> None:
    assert next(backoff_delays()) == pytest.approx(0.0375, abs=0.0126)
