"""Mount points of the machine."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

MOUNTINFO = "/proc/self/mountinfo"


def mount_points(text: str) -> list[str]:
    """Parses the mount points from mountinfo, in mount order."""
    return [
        re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), line.split(" ")[4])
        for line in text.splitlines()
        if line
    ]


def mounts_below(points: Iterable[str], path: str) -> list[str]:
    """Returns the mount points at or below a path, innermost first, in the order in which to unmount them."""
    prefix = path.rstrip("/") + "/"
    return sorted((point for point in points if point == path or point.startswith(prefix)), reverse=True)


def outermost(points: Iterable[str]) -> list[str]:
    """Returns the mount points that are not below another one of them."""
    found: list[str] = []
    for point in sorted(set(points)):
        if not any(point.startswith(f"{other}/") for other in found):
            found.append(point)
    return found


def current_mounts() -> list[str]:
    return mount_points(Path(MOUNTINFO).read_text(errors="replace"))
