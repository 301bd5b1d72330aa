"""What can be made to go wrong, as data: one frozen class a fault.

    Slow      so many bytes a second, on each connection
    Stall     some bytes, then silence on an open connection
    Cut       some bytes, then the connection is reset
    Corrupt   the right length, and wrong bytes in the middle
    Status    404, 503 or another refusal instead of the file
    Checksum  the checksum file beside the path tells another sum

The same classes stand at both ends of the control socket; `write_switch` and `read_switch` take them across.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar

from aks_flex_node.lab.errors import UsageError
from aks_flex_node.lab.mirror.sizes import HALF, Amount

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

LONGEST_HOLD = 3600.0


@dataclass(frozen=True)
class Slow:
    kind: ClassVar = "slow"
    rate: int  # bytes per second

    def __post_init__(self) -> None:
        require(self.rate >= 1, "A rate is at least 1 byte per second.")


@dataclass(frozen=True)
class Stall:
    kind: ClassVar = "stall"
    after: Amount = HALF
    hold: float = 600.0  # seconds until the silent connection is given up

    def __post_init__(self) -> None:
        require(0 < self.hold <= LONGEST_HOLD, f"A stall holds for 0 to {LONGEST_HOLD:.0f} seconds.")


@dataclass(frozen=True)
class Cut:
    kind: ClassVar = "cut"
    after: Amount = HALF


@dataclass(frozen=True)
class Corrupt:
    kind: ClassVar = "corrupt"


@dataclass(frozen=True)
class Status:
    kind: ClassVar = "status"
    code: int
    retry_after: int | None = None

    def __post_init__(self) -> None:
        require(400 <= self.code <= 599, "A refusal has a status from 400 to 599.")
        require(self.retry_after is None or self.retry_after >= 0, "Retry-After is a number of seconds from 0 on.")


@dataclass(frozen=True)
class Checksum:
    kind: ClassVar = "checksum"


Switch = Slow | Stall | Cut | Corrupt | Status | Checksum

READERS: Mapping[str, Callable[[Mapping[str, Any]], Switch]] = {
    "slow": lambda wire: Slow(int(wire["rate"])),
    "stall": lambda wire: Stall(Amount.read(str(wire["after"])), float(wire["hold"])),
    "cut": lambda wire: Cut(Amount.read(str(wire["after"]))),
    "corrupt": lambda _: Corrupt(),
    "status": lambda wire: Status(
        int(wire["code"]), None if wire.get("retry_after") is None else int(wire["retry_after"])
    ),
    "checksum": lambda _: Checksum(),
}


def require(holds: bool, sentence: str) -> None:
    if not holds:
        raise UsageError("switch-invalid", sentence)


def write_switch(switch: Switch) -> dict[str, Any]:
    """A switch as JSON takes it."""
    values = {field.name: getattr(switch, field.name) for field in fields(switch)}
    shown = {name: str(value) if isinstance(value, Amount) else value for name, value in values.items()}
    return {"kind": switch.kind, **shown}


def read_switch(wire: Mapping[str, Any]) -> Switch:
    """A switch from JSON; a kind or a value that makes no sense is a UsageError."""
    reader = READERS.get(str(wire.get("kind")))
    if reader is None:
        raise UsageError(
            "switch-unknown", f"There is no switch {wire.get('kind')!r}.", f"There are: {', '.join(READERS)}."
        )
    try:
        return reader(wire)
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError("switch-invalid", f"The switch {wire['kind']} lacks or misstates {error}.") from error
