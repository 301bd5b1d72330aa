"""Which node may begin next: those that wait, within the budget of the roll-out and of each failure domain.

Every method takes constant time, so that a step of a roll-out costs the same in a large fleet.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


class StartQueue:
    def __init__(self, limit: int, domain_limits: Mapping[str, int] | None = None) -> None:
        """`domain_limits` has the limit of each failure domain; None if there are no domains."""
        self.limit = limit
        self._domain_limits = domain_limits
        self._waiting: dict[str, dict[str, None]] = {}  # by domain, in the order of arrival
        self._startable: dict[str, None] = {}  # domains with waiting nodes and a free place
        self._domains: dict[str, str] = {}  # of the waiting nodes
        self._used: dict[str, str] = {}  # nodes that are unavailable, with their domains
        self._used_in: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._domains)

    @property
    def waiting(self) -> list[str]:
        return list(self._domains)

    @property
    def unavailable(self) -> list[str]:
        return list(self._used)

    def add(self, name: str, domain: str) -> None:
        if name not in self._domains:
            self._domains[name] = domain
            self._waiting.setdefault(domain, {})[name] = None
            self._update(domain)

    def discard(self, name: str) -> None:
        domain = self._domains.pop(name, None)
        if domain is not None:
            del self._waiting[domain][name]
            self._update(domain)

    def occupy(self, name: str, domain: str) -> None:
        """Counts a node as unavailable."""
        if name not in self._used:
            self._used[name] = domain
            self._used_in[domain] += 1
            self._update(domain)

    def release(self, name: str) -> None:
        domain = self._used.pop(name, None)
        if domain is not None:
            self._used_in[domain] -= 1
            self._update(domain)

    def next(self) -> str | None:
        """Returns a node that may begin, or None. It waits until it is discarded."""
        if len(self._used) >= self.limit or not self._startable:
            return None
        domain = next(iter(self._startable))
        del self._startable[domain]  # to the end: domains take turns
        self._startable[domain] = None
        return next(iter(self._waiting[domain]))

    def _update(self, domain: str) -> None:
        has_place = self._domain_limits is None or self._used_in[domain] < self._domain_limits.get(domain, 1)
        if self._waiting.get(domain) and has_place:
            self._startable.setdefault(domain)
        else:
            self._startable.pop(domain, None)
