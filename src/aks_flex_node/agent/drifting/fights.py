"""Where somebody else changes back what we repair: after a few rounds we stop, and say so.

Pure: the time is given, and comes from the clock on the wall, because what is known outlives the process and a boot.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

ROUNDS = 3
SECONDS = 3600.0


@dataclass(frozen=True)
class Fights:
    configuration: str = ""  # the version under which all of this happened
    repaired: Mapping[str, tuple[float, ...]] = field(default_factory=dict)  # subject -> when, of late
    given_up: Mapping[str, float] = field(default_factory=dict)  # subject -> since when it is left alone

    def under(self, configuration: str) -> Fights:
        """The same under a configuration; another one is reason to try everything again."""
        return self if configuration == self.configuration else Fights(configuration)

    def after(self, subjects: Iterable[str], now: float) -> Fights:
        """What is known after these were repaired."""
        repaired = {name: _lately(times, now) for name, times in self.repaired.items()}
        given_up = {name: since for name, since in self.given_up.items() if _is_late(since, now)}
        for name in subjects:
            repaired[name] = (*repaired.get(name, ()), now)
            if len(repaired[name]) >= ROUNDS:
                given_up[name] = now
                repaired[name] = ()
        return replace(self, repaired={name: times for name, times in repaired.items() if times}, given_up=given_up)

    def left_alone(self, now: float) -> frozenset[str]:
        return frozenset(name for name, since in self.given_up.items() if _is_late(since, now))

    def document(self) -> dict[str, Any]:
        repaired = {name: list(times) for name, times in self.repaired.items()}
        return {"configuration": self.configuration, "repaired": repaired, "givenUp": dict(self.given_up)}


def read(document: object) -> Fights:
    """What a document says; one that says nothing we understand is like none."""
    try:
        assert isinstance(document, dict)  # noqa: S101 - caught below, like all that is wrong with it
        repaired = {str(name): tuple(float(one) for one in times) for name, times in document["repaired"].items()}
        given_up = {str(name): float(since) for name, since in document["givenUp"].items()}
        return Fights(str(document["configuration"]), repaired, given_up)
    except (AssertionError, KeyError, TypeError, ValueError, AttributeError):
        return Fights()


def _is_late(moment: float, now: float) -> bool:
    """Whether it was within the hour. What lies ahead is from a clock that has been set back since."""
    return 0 <= now - moment < SECONDS


def _lately(times: tuple[float, ...], now: float) -> tuple[float, ...]:
    return tuple(one for one in times if _is_late(one, now))
