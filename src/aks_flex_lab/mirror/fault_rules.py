"""Fault rules of the mirror: kinds of faults as data, which requests they match, and request counts."""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass, fields, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, ClassVar

from aks_flex_lab.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmg]?)(?:i?b)?", re.IGNORECASE)
PERCENT = re.compile(r"(\d+(?:\.\d+)?)\s*%")
UNITS = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3}  # as curl interprets them


def parse_size(text: str) -> int:
    """Parses `4096`, `200k`, `1.5M` or `1GiB` as a number of bytes."""
    match = SIZE.fullmatch(text.strip())
    if not match:
        raise UsageError(
            "size-invalid",
            f"{text!r} is not a size.",
            "Write bytes, or a number with k, M or G, for example `200k` or `1.5M`.",
        )
    return int(float(match[1]) * UNITS[match[2].lower()])


@dataclass(frozen=True)
class ByteAmount:
    """A number of bytes, or a share of the length of the response."""

    bytes: int = 0
    percent: float | None = None

    @classmethod
    def parse(cls, text: str) -> ByteAmount:
        match = PERCENT.fullmatch(text.strip())
        if not match:
            return cls(parse_size(text))
        percent = float(match[1])
        if percent > 100:
            raise UsageError(
                "mirror-share-too-large", f"{text!r} is more than 100 %.", "Use 0% to 100%, for example `50%`."
            )
        return cls(percent=percent)

    def of(self, length: int) -> int:
        """Returns the amount for a response of `length` bytes, at most `length`."""
        if self.percent is None:
            return min(self.bytes, length)
        return int(length * self.percent / 100)

    def __str__(self) -> str:
        return str(self.bytes) if self.percent is None else f"{self.percent:g}%"


HALF = ByteAmount(percent=50)


MAX_HOLD_SECONDS = 3600.0


@dataclass(frozen=True)
class SlowFault:
    kind: ClassVar = "slow"
    rate: int  # bytes per second

    def __post_init__(self) -> None:
        require_valid(self.rate >= 1, "A rate must be at least 1 byte per second.")


@dataclass(frozen=True)
class StallFault:
    kind: ClassVar = "stall"
    after: ByteAmount = HALF
    hold: float = 600.0  # seconds until the stalled connection is closed

    def __post_init__(self) -> None:
        require_valid(
            0 < self.hold <= MAX_HOLD_SECONDS,
            f"The hold of a stall must be from 0 to {MAX_HOLD_SECONDS:.0f} seconds.",
        )


@dataclass(frozen=True)
class CutFault:
    kind: ClassVar = "cut"
    after: ByteAmount = HALF


@dataclass(frozen=True)
class CorruptFault:
    kind: ClassVar = "corrupt"


@dataclass(frozen=True)
class StatusFault:
    kind: ClassVar = "status"
    code: int
    retry_after: int | None = None

    def __post_init__(self) -> None:
        require_valid(400 <= self.code <= 599, "A status must be from 400 to 599.")
        require_valid(
            self.retry_after is None or self.retry_after >= 0,
            "Retry-After must be a number of seconds of at least 0.",
        )


@dataclass(frozen=True)
class ChecksumFault:
    kind: ClassVar = "checksum"


MirrorFault = SlowFault | StallFault | CutFault | CorruptFault | StatusFault | ChecksumFault

READERS: Mapping[str, Callable[[Mapping[str, Any]], MirrorFault]] = {
    "slow": lambda wire: SlowFault(int(wire["rate"])),
    "stall": lambda wire: StallFault(ByteAmount.parse(str(wire["after"])), float(wire["hold"])),
    "cut": lambda wire: CutFault(ByteAmount.parse(str(wire["after"]))),
    "corrupt": lambda _: CorruptFault(),
    "status": lambda wire: StatusFault(
        int(wire["code"]), None if wire.get("retry_after") is None else int(wire["retry_after"])
    ),
    "checksum": lambda _: ChecksumFault(),
}


def require_valid(holds: bool, sentence: str) -> None:
    if not holds:
        raise UsageError("mirror-fault-invalid", sentence)


def fault_to_json(fault: MirrorFault) -> dict[str, Any]:
    """Returns a fault as a JSON object."""
    values = {field.name: getattr(fault, field.name) for field in fields(fault)}
    shown = {name: str(value) if isinstance(value, ByteAmount) else value for name, value in values.items()}
    return {"kind": fault.kind, **shown}


def fault_from_json(wire: Mapping[str, Any]) -> MirrorFault:
    """Returns the fault of a JSON object; raises UsageError for an unknown kind or an invalid value."""
    reader = READERS.get(str(wire.get("kind")))
    if reader is None:
        raise UsageError(
            "mirror-fault-unknown",
            f"Unknown kind of fault rule {wire.get('kind')!r}.",
            f"The kinds are: {', '.join(READERS)}.",
        )
    try:
        return reader(wire)
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(
            "mirror-fault-invalid", f"The fault rule {wire['kind']} has a missing or invalid value {error}."
        ) from error


@dataclass(frozen=True)
class FaultRule:
    """A fault for the requests whose `host/path` matches a pattern."""

    id: int
    glob: str
    fault: MirrorFault
    times: int | None = None  # number of requests that it applies to; None: all
    hits: int = 0

    @property
    def exhausted(self) -> bool:
        return self.times is not None and self.hits >= self.times

    def matches(self, request: MirrorRequest) -> bool:
        if isinstance(self.fault, ChecksumFault):
            return any(fnmatchcase(name, self.glob) for name in request.summed)
        # Slow, stall, cut and corrupt affect a body: a HEAD or a 304 must not count against their `times`.
        fits = request.body or isinstance(self.fault, StatusFault)
        return fits and fnmatchcase(request.path, self.glob)

    def to_json(self) -> dict[str, Any]:
        fault = fault_to_json(self.fault)
        return {"id": self.id, "glob": self.glob, **fault, "times": self.times, "hits": self.hits}

    @classmethod
    def from_json(cls, wire: Mapping[str, Any]) -> FaultRule:
        return cls(int(wire["id"]), str(wire["glob"]), fault_from_json(wire), wire["times"], int(wire["hits"]))


@dataclass(frozen=True)
class MirrorRequest:
    """The properties of a request that fault rules match."""

    path: str  # host/path
    body: bool  # whether the response contains bytes of the file
    summed: Sequence[str] = ()  # for a checksum file: its own path and those of the files that it lists


@dataclass(frozen=True)
class RequestCount:
    """The number of requests for a path, and the number of body bytes that were sent."""

    path: str
    requests: int = 0
    bytes: int = 0


class FaultRuleTable:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rules: dict[int, FaultRule] = {}  # in the order of their creation
        self._fetched: dict[str, RequestCount] = {}
        self._last_id = 0

    def add(self, glob: str, fault: MirrorFault, times: int | None = None) -> FaultRule:
        glob = glob.removeprefix("https://").removeprefix("http://")
        if not glob or (times is not None and times < 1):
            raise UsageError(
                "mirror-rule-invalid",
                "A fault rule needs a pattern, and `times` of at least 1.",
                "For example `dl.k8s.io/*`.",
            )
        with self._lock:
            self._last_id += 1
            rule = self._rules[self._last_id] = FaultRule(self._last_id, glob, fault, times)
            return rule

    def remove(self, rule_id: int) -> bool:
        """Removes a fault rule; returns whether it existed."""
        with self._lock:
            return self._rules.pop(rule_id, None) is not None

    def reset(self) -> None:
        """Removes all fault rules and resets the request counts."""
        with self._lock:
            self._rules.clear()
            self._fetched = {}  # requests that are still answered count in the old one

    def match(self, request: MirrorRequest) -> FaultRule | None:
        """Returns the oldest rule that matches the request and is not used up, and counts the hit."""
        with self._lock:
            for rule in self._rules.values():
                if not rule.exhausted and rule.matches(request):
                    struck = self._rules[rule.id] = replace(rule, hits=rule.hits + 1)
                    return struck
        return None

    def is_active(self, rule: FaultRule) -> bool:
        """Returns whether the rule still exists. The responses that a removed rule delays continue."""
        with self._lock:
            return rule.id in self._rules

    def rules(self) -> tuple[FaultRule, ...]:
        with self._lock:
            return tuple(self._rules.values())

    def count_request(self, path: str) -> Callable[[int], None]:
        """Counts a request; returns the function that counts the bytes of its body, unless the counts were reset."""
        with self._lock:
            counts = self._fetched
            known = counts.get(path) or RequestCount(path)
            counts[path] = replace(known, requests=known.requests + 1)

        def count_bytes(sent: int) -> None:
            with self._lock:
                counts[path] = replace(counts[path], bytes=counts[path].bytes + sent)

        return count_bytes

    def request_counts(self) -> tuple[RequestCount, ...]:
        with self._lock:
            return tuple(sorted(self._fetched.values(), key=lambda each: each.path))
