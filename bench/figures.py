"""The figures of a benchmark: summaries of its rounds, and the last line of its output."""

from __future__ import annotations

import json
import statistics
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Round = Mapping[str, float]


def medians(rounds: Sequence[Round], digits: int = 2) -> dict[str, float]:
    return {key: round(statistics.median(one[key] for one in rounds), digits) for key in rounds[0]}


def spreads(rounds: Sequence[Round], digits: int = 2) -> dict[str, dict[str, float]]:
    """Returns the median and the range of every figure."""
    return {
        key: {
            "median": median,
            "min": round(min(one[key] for one in rounds), digits),
            "max": round(max(one[key] for one in rounds), digits),
        }
        for key, median in medians(rounds, digits).items()
    }


def rounded(found: Any) -> Any:
    return {key: rounded(value) for key, value in found.items()} if isinstance(found, dict) else round(found, 2)


def print_round(what: str, figures: Round) -> None:
    print(f"{what}:  " + "  ".join(f"{key} {value:,.2f}" for key, value in figures.items()), flush=True)


def print_result(name: str, **figures: Any) -> None:
    """Prints the last line: one JSON object."""
    print(json.dumps({"bench": name, **figures}))
