"""Chance that is the same on every run and on every machine: a test that was green here is green there."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

EXAMPLES = int(os.environ.get("AKS_FLEX_FUZZ_EXAMPLES", "80"))  # of each property; more finds more, and takes longer

settings.register_profile(
    "bounded",
    max_examples=EXAMPLES,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large],
)
settings.load_profile("bounded")
