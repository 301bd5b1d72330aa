"""Amounts of bytes as people write them: `200k`, `1.5M`, `50%`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from aks_flex_node.lab.errors import UsageError

SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmg]?)(?:i?b)?", re.IGNORECASE)
PERCENT = re.compile(r"(\d+(?:\.\d+)?)\s*%")
UNITS = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3}  # as curl counts them


def read_size(text: str) -> int:
    """Bytes from `4096`, `200k`, `1.5M` or `1GiB`."""
    match = SIZE.fullmatch(text.strip())
    if not match:
        raise UsageError(
            "size-not-understood",
            f"{text!r} is not a size.",
            "Write bytes, or a number with k, M or G, for example `200k` or `1.5M`.",
        )
    return int(float(match[1]) * UNITS[match[2].lower()])


@dataclass(frozen=True)
class Amount:
    """So many bytes, or a share of whatever the answer is long."""

    bytes: int = 0
    percent: float | None = None

    @classmethod
    def read(cls, text: str) -> Amount:
        match = PERCENT.fullmatch(text.strip())
        if not match:
            return cls(read_size(text))
        percent = float(match[1])
        if percent > 100:
            raise UsageError(
                "share-too-large", f"{text!r} is more than the whole.", "Use 0% to 100%, for example `50%`."
            )
        return cls(percent=percent)

    def of(self, length: int) -> int:
        """How many of `length` bytes this is; never more than there are."""
        if self.percent is None:
            return min(self.bytes, length)
        return int(length * self.percent / 100)

    def __str__(self) -> str:
        return str(self.bytes) if self.percent is None else f"{self.percent:g}%"


HALF = Amount(percent=50)
