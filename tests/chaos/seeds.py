"""Reproducible random numbers: the same seed gives the same operations, though not at the same instants."""

from __future__ import annotations

import os
import random


def seeded(otherwise: int) -> random.Random:
    """Prints the seed; pytest shows it when a test fails."""
    seed = int(os.environ.get("AKS_FLEX_CHAOS_SEED", otherwise))
    print(f"seed {seed}; the same again: AKS_FLEX_CHAOS_SEED={seed}", flush=True)
    return random.Random(seed)  # noqa: S311 - not for secrecy
