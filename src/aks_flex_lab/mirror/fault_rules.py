"""Fault rules of the mirror: kinds of faults as data, which requests they match, and request counts."""

from __future__ import annotations

import re
import threading
from dataclasses import MISSING, dataclass, fields, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, ClassVar

from aks_flex_lab.errors import UsageError, did_you_mean

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


@dataclass(frozen=True)
class SlowFault:
    kind: ClassVar = "slow"
    rate: int  # bytes per second


@dataclass(frozen=True)
class StallFault:
    kind: ClassVar = "stall"
    after: ByteAmount = HALF
    hold: float = 600.0  # seconds until the stalled connection is closed


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


@dataclass(frozen=True)
class ChecksumFault:
    kind: ClassVar = "checksum"


MirrorFault = SlowFault | StallFault | CutFault | CorruptFault | StatusFault | ChecksumFault
FAULTS: dict[str, type[MirrorFault]] = {
    each.kind: each for each in (SlowFault, StallFault, CutFault, CorruptFault, StatusFault, ChecksumFault)
}


def parse_rate(text: str) -> int:
    return max(1, parse_size(text))


VALUES: dict[str, Callable[[str], object]] = {
    "rate": parse_rate,
    "after": ByteAmount.parse,
    "hold": float,
    "code": int,
    "retry_after": int,
}


def fault_to_texts(fault: MirrorFault) -> dict[str, str]:
    """Returns the kind and the values of a fault as texts, as a command line has them."""
    values = {field.name: getattr(fault, field.name) for field in fields(fault)}
    shown = {name: f"{value:g}" if isinstance(value, float) else str(value) for name, value in values.items()}
    return {"kind": fault.kind, **{name: text for name, text in shown.items() if values[name] is not None}}


def fault_from_texts(texts: Mapping[str, str]) -> MirrorFault:
    """Returns the fault of a kind with values; raises UsageError for an unknown kind or an invalid value."""
    kind, values = texts["kind"], {name: text for name, text in texts.items() if name != "kind"}
    if kind not in FAULTS:
        raise UsageError("mirror-fault-unknown", f"Unknown kind of fault rule {kind!r}.", did_you_mean(kind, FAULTS))
    try:
        return FAULTS[kind](**{name: VALUES[name](text) for name, text in values.items()})  # type: ignore[arg-type]
    except (KeyError, TypeError, ValueError) as error:
        given = [f"{name}={text}" for name, text in values.items()]
        names = [
            f"{field.name} (required)" if field.default is MISSING else field.name for field in fields(FAULTS[kind])
        ]
        raise UsageError(
            "mirror-fault-invalid",
            f"A fault rule of the kind {kind} cannot be made of {' '.join(given) or 'no values'}.",
            f"Use these values, as KEY=VALUE: {', '.join(names) or 'none'}.",
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

    @property
    def document(self) -> dict[str, Any]:
        return {**vars(self), "fault": fault_to_texts(self.fault)}

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> FaultRule:
        return cls(**{**document, "fault": fault_from_texts(document["fault"])})


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
