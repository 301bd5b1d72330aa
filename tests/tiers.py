"""Which tests `make test` leaves to `make test-full`: the one place of this rule, so that no test is in no tier.

A test of a directory in FULL_DIRECTORIES is in the full tier, unless it is marked `promise`: these, one or two for
each promise of the product, share two labs in `make test`. A test that runs on both databases is in `make test` with
SQLite; only the tests of the store itself use both there.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest

TESTS = Path(__file__).parent
FULL_DIRECTORIES = (
    "azure",
    "conformance",
    "e2e",
    "fuzz",
    "lab",
    "packaging",
    "remedies",
    "service/answers",
    "service/contract",
    "service/release",
    "vm",
)
BOTH_DATABASES = "service/rp/store"


def is_full(item: pytest.Item) -> bool:
    """Returns whether a test is in `make test-full` and not in `make test`."""
    directory = item.path.parent.relative_to(TESTS)
    parents = {str(parent) for parent in (directory, *directory.parents)}
    if item.get_closest_marker("full"):
        return True
    if item.get_closest_marker("promise"):
        return False
    if parents & set(FULL_DIRECTORIES):
        return True
    callspec: Any = getattr(item, "callspec", None)
    return callspec is not None and "postgres" in callspec.params.values() and BOTH_DATABASES not in parents
