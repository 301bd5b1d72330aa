"""Which faults are switched on, how often each struck, and what was fetched.

All connections share one switchboard, so every method takes its lock. A rule is a value: a hit puts a changed copy in
its place, and whoever holds the earlier one is not disturbed.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from aks_flex_node.lab.errors import UsageError
from aks_flex_node.lab.mirror.switches import Checksum, Status, Switch, read_switch, write_switch

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True)
class Rule:
    """A fault for the paths that a pattern covers. Patterns are matched against `host/path`."""

    id: int
    glob: str
    switch: Switch
    times: int | None = None  # to how many requests it applies; None: all
    hits: int = 0

    @property
    def spent(self) -> bool:
        return self.times is not None and self.hits >= self.times

    def covers(self, request: Request) -> bool:
        if isinstance(self.switch, Checksum):
            return any(fnmatchcase(name, self.glob) for name in request.summed)
        # Slow, stall, cut and corrupt act on a body: a HEAD or a 304 must not use up their `times`.
        fits = request.body or isinstance(self.switch, Status)
        return fits and fnmatchcase(request.path, self.glob)

    def wire(self) -> dict[str, Any]:
        switch = write_switch(self.switch)
        return {"id": self.id, "glob": self.glob, **switch, "times": self.times, "hits": self.hits}

    @classmethod
    def read(cls, wire: Mapping[str, Any]) -> Rule:
        return cls(int(wire["id"]), str(wire["glob"]), read_switch(wire), wire["times"], int(wire["hits"]))


@dataclass(frozen=True)
class Request:
    """What a rule looks at."""

    path: str  # host/path
    body: bool  # whether the answer will carry bytes of the file
    summed: Sequence[str] = ()  # for a checksum file: itself and the files it speaks of


@dataclass(frozen=True)
class Fetched:
    """How often a path was asked for, and how many body bytes were given to the network for it."""

    path: str
    requests: int = 0
    bytes: int = 0


class Switchboard:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rules: dict[int, Rule] = {}  # in the order they were added
        self._fetched: dict[str, Fetched] = {}
        self._last_id = 0

    def add(self, glob: str, switch: Switch, times: int | None = None) -> Rule:
        glob = glob.removeprefix("https://").removeprefix("http://")
        if not glob or (times is not None and times < 1):
            raise UsageError(
                "rule-invalid", "A rule needs a pattern, and `times` of at least 1.", "For example `dl.k8s.io/*`."
            )
        with self._lock:
            self._last_id += 1
            rule = self._rules[self._last_id] = Rule(self._last_id, glob, switch, times)
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

    def strike(self, request: Request) -> Rule | None:
        """The rule that decides this request, its hit counted: the first that was added and is not spent."""
        with self._lock:
            for rule in self._rules.values():
                if not rule.spent and rule.covers(request):
                    struck = self._rules[rule.id] = replace(rule, hits=rule.hits + 1)
                    return struck
        return None

    def is_on(self, rule: Rule) -> bool:
        """Whether the rule still stands; one that is taken away lets go of the answers it holds."""
        with self._lock:
            return rule.id in self._rules

    def rules(self) -> tuple[Rule, ...]:
        with self._lock:
            return tuple(self._rules.values())

    def count(self, path: str, requests: int = 0, sent: int = 0) -> None:
        with self._lock:
            known = self._fetched.get(path) or Fetched(path)
            self._fetched[path] = Fetched(path, known.requests + requests, known.bytes + sent)

    def fetched(self) -> tuple[Fetched, ...]:
        with self._lock:
            return tuple(sorted(self._fetched.values(), key=lambda each: each.path))
