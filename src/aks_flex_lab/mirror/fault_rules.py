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
UNITS = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3}  # as curl counts them


def parse_size(text: str) -> int:
    """Bytes from `4096`, `200k`, `1.5M` or `1GiB`."""
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
    """So many bytes, or a share of whatever the answer is long."""

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
                "mirror-share-too-large", f"{text!r} is more than the whole.", "Use 0% to 100%, for example `50%`."
            )
        return cls(percent=percent)

    def of(self, length: int) -> int:
        """How many of `length` bytes this is; never more than there are."""
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
        require_valid(self.rate >= 1, "A rate is at least 1 byte per second.")


@dataclass(frozen=True)
class StallFault:
    kind: ClassVar = "stall"
    after: ByteAmount = HALF
    hold: float = 600.0  # seconds until the silent connection is given up

    def __post_init__(self) -> None:
        require_valid(0 < self.hold <= MAX_HOLD_SECONDS, f"A stall holds for 0 to {MAX_HOLD_SECONDS:.0f} seconds.")


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
        require_valid(400 <= self.code <= 599, "A refusal has a status from 400 to 599.")
        require_valid(
            self.retry_after is None or self.retry_after >= 0, "Retry-After is a number of seconds from 0 on."
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


def fault_to_json(switch: MirrorFault) -> dict[str, Any]:
    """A switch as JSON takes it."""
    values = {field.name: getattr(switch, field.name) for field in fields(switch)}
    shown = {name: str(value) if isinstance(value, ByteAmount) else value for name, value in values.items()}
    return {"kind": switch.kind, **shown}


def fault_from_json(wire: Mapping[str, Any]) -> MirrorFault:
    """A switch from JSON; a kind or a value that makes no sense is a UsageError."""
    reader = READERS.get(str(wire.get("kind")))
    if reader is None:
        raise UsageError(
            "mirror-fault-unknown", f"There is no switch {wire.get('kind')!r}.", f"There are: {', '.join(READERS)}."
        )
    try:
        return reader(wire)
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError("mirror-fault-invalid", f"The switch {wire['kind']} lacks or misstates {error}.") from error


@dataclass(frozen=True)
class FaultRule:
    """A fault for the paths that a pattern covers. Patterns are matched against `host/path`."""

    id: int
    glob: str
    fault: MirrorFault
    times: int | None = None  # to how many requests it applies; None: all
    hits: int = 0

    @property
    def exhausted(self) -> bool:
        return self.times is not None and self.hits >= self.times

    def matches(self, request: MirrorRequest) -> bool:
        if isinstance(self.fault, ChecksumFault):
            return any(fnmatchcase(name, self.glob) for name in request.summed)
        # Slow, stall, cut and corrupt act on a body: a HEAD or a 304 must not use up their `times`.
        fits = request.body or isinstance(self.fault, StatusFault)
        return fits and fnmatchcase(request.path, self.glob)

    def to_json(self) -> dict[str, Any]:
        switch = fault_to_json(self.fault)
        return {"id": self.id, "glob": self.glob, **switch, "times": self.times, "hits": self.hits}

    @classmethod
    def from_json(cls, wire: Mapping[str, Any]) -> FaultRule:
        return cls(int(wire["id"]), str(wire["glob"]), fault_from_json(wire), wire["times"], int(wire["hits"]))


@dataclass(frozen=True)
class MirrorRequest:
    """What a rule looks at."""

    path: str  # host/path
    body: bool  # whether the answer will carry bytes of the file
    summed: Sequence[str] = ()  # for a checksum file: itself and the files it speaks of


@dataclass(frozen=True)
class RequestCount:
    """How often a path was asked for, and how many body bytes were given to the network for it."""

    path: str
    requests: int = 0
    bytes: int = 0


class FaultRuleTable:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rules: dict[int, FaultRule] = {}  # in the order they were added
        self._fetched: dict[str, RequestCount] = {}
        self._last_id = 0

    def add(self, glob: str, switch: MirrorFault, times: int | None = None) -> FaultRule:
        glob = glob.removeprefix("https://").removeprefix("http://")
        if not glob or (times is not None and times < 1):
            raise UsageError(
                "mirror-rule-invalid",
                "A rule needs a pattern, and `times` of at least 1.",
                "For example `dl.k8s.io/*`.",
            )
        with self._lock:
            self._last_id += 1
            rule = self._rules[self._last_id] = FaultRule(self._last_id, glob, switch, times)
            return rule

    def remove(self, rule_id: int) -> bool:
        """Whether there was such a rule."""
        with self._lock:
            return self._rules.pop(rule_id, None) is not None

    def reset(self) -> None:
        """No faults, and all counts at nought."""
        with self._lock:
            self._rules.clear()
            self._fetched.clear()

    def match(self, request: MirrorRequest) -> FaultRule | None:
        """The rule that decides this request, its hit counted: the first that was added and is not spent."""
        with self._lock:
            for rule in self._rules.values():
                if not rule.exhausted and rule.matches(request):
                    struck = self._rules[rule.id] = replace(rule, hits=rule.hits + 1)
                    return struck
        return None

    def is_active(self, rule: FaultRule) -> bool:
        """Whether the rule still stands; one that is taken away lets go of the answers it holds."""
        with self._lock:
            return rule.id in self._rules

    def rules(self) -> tuple[FaultRule, ...]:
        with self._lock:
            return tuple(self._rules.values())

    def count(self, path: str, requests: int = 0, sent: int = 0) -> None:
        with self._lock:
            known = self._fetched.get(path) or RequestCount(path)
            self._fetched[path] = RequestCount(path, known.requests + requests, known.bytes + sent)

    def request_counts(self) -> tuple[RequestCount, ...]:
        with self._lock:
            return tuple(sorted(self._fetched.values(), key=lambda each: each.path))
