"""The generated reference pages, which are not tracked."""

from __future__ import annotations

import pytest
from scripts.reference.__main__ import PAGES


@pytest.fixture(scope="session")
def reference() -> dict[str, str]:
    """Returns the text of every generated page by its file name."""
    return {name: page() for name, page in PAGES.items()}
