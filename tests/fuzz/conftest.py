"""Fixtures: deterministic examples, the same on every run and machine."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

EXAMPLES = int(os.environ.get("AKS_FLEX_FUZZ_EXAMPLES", "80"))  # examples of each property; more find more

settings.register_profile(
    "bounded",
    max_examples=EXAMPLES,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large],
)
settings.load_profile("bounded")
