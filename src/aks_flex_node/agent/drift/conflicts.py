"""Conflicts: what somebody else changes back after each repair is left alone after a few rounds.

Pure; times are wall-clock times, because the record outlives the process and a reboot.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

MAX_REPAIRS = 3
CONFLICT_SECONDS = 3600.0


@dataclass(frozen=True)
class Conflicts:
    configuration: str = ""  # the version under which all of this happened
    repaired: Mapping[str, tuple[float, ...]] = field(default_factory=dict)  # subject -> when, of late
    given_up: Mapping[str, float] = field(default_factory=dict)  # subject -> since when it is left alone

    def for_configuration(self, configuration: str) -> Conflicts:
        """The same under a configuration; another one is reason to try everything again."""
        return self if configuration == self.configuration else Conflicts(configuration)

    def with_repairs(self, subjects: Iterable[str], now: float) -> Conflicts:
        """What is known after these were repaired."""
        repaired = {name: _recent_times(times, now) for name, times in self.repaired.items()}
        given_up = {name: since for name, since in self.given_up.items() if _is_recent(since, now)}
        for name in subjects:
            repaired[name] = (*repaired.get(name, ()), now)
            if len(repaired[name]) >= MAX_REPAIRS:
                given_up[name] = now
                repaired[name] = ()
        return replace(self, repaired={name: times for name, times in repaired.items() if times}, given_up=given_up)

    def ignored_subjects(self, now: float) -> frozenset[str]:
        return frozenset(name for name, since in self.given_up.items() if _is_recent(since, now))

    def as_document(self) -> dict[str, Any]:
        repaired = {name: list(times) for name, times in self.repaired.items()}
        return {"configuration": self.configuration, "repaired": repaired, "givenUp": dict(self.given_up)}


def parse_conflicts(document: object) -> Conflicts:
    """What a document says; one that says nothing we understand is like none."""
    try:
        assert isinstance(document, dict)  # noqa: S101 - caught below, like all that is wrong with it
        repaired = {str(name): tuple(float(one) for one in times) for name, times in document["repaired"].items()}
        given_up = {str(name): float(since) for name, since in document["givenUp"].items()}
        return Conflicts(str(document["configuration"]), repaired, given_up)
    except (AssertionError, KeyError, TypeError, ValueError, AttributeError):
        return Conflicts()


def _is_recent(timestamp: float, now: float) -> bool:
    """Whether it was within the hour. What lies ahead is from a clock that has been set back since."""
    return 0 <= now - timestamp < CONFLICT_SECONDS


def _recent_times(times: tuple[float, ...], now: float) -> tuple[float, ...]:
    return tuple(one for one in times if _is_recent(one, now))
