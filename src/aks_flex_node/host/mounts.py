"""Which directories have something mounted on them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

MOUNTINFO = "/proc/self/mountinfo"


def mount_points(text: str) -> list[str]:
    """The mount points that a mountinfo names, in the order in which they were mounted."""
    return [_plain(line.split(" ")[4]) for line in text.splitlines() if line]


def _plain(field: str) -> str:
    """Blanks and the like are written as octal numbers there."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), field)


def mounts_below(points: Iterable[str], path: str) -> list[str]:
    """The mount points at or below a path, the innermost first, as they must be unmounted."""
    prefix = path.rstrip("/") + "/"
    return sorted((point for point in points if point == path or point.startswith(prefix)), reverse=True)


def current_mounts() -> list[str]:
    return mount_points(Path(MOUNTINFO).read_text(errors="replace"))
