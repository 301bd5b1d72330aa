"""A directory for many simulated machines, on a tmpfs if possible."""

from __future__ import annotations

import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

MEMORY = Path("/dev/shm")  # noqa: S108 - a directory of our own is made in it


@contextmanager
def machine_room() -> Iterator[Path]:
    """Yields an empty directory, and removes it at the end."""
    with tempfile.TemporaryDirectory(prefix="aks-flex-test-", dir=MEMORY if MEMORY.is_dir() else None) as place:
        yield Path(place)
