"""One run of one gate: what it is about, what it answers, and how it is repeated until its time limit."""

from __future__ import annotations

import asyncio
import hashlib
import json
import unicodedata
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aks_flex_rp.rollouts.gate_specs import GateSpec

MAX_MESSAGE_LENGTH = 1000
MAX_REFUSALS = 3  # in a row, after which a gate fails: one may be the mistake of a proxy or of a restart

T = TypeVar("T")


@dataclass(frozen=True)
class GateRun:
    """One gate of one wave. Equal runs are the same run, also after a restart of the service."""

    cluster: str  # key of the cluster
    pool: str
    rollout: str
    wave: int  # from 1
    revision: int
    nodes: tuple[str, ...]  # updated nodes of the wave
    gate: GateSpec
    started: float  # wall time, so that the time limit holds across restarts

    @property
    def id(self) -> str:
        """Returns an ID that is the same after a restart, and another one for a later roll-out of the same name."""
        parts = (self.cluster, self.pool, self.rollout, self.wave, self.revision, self.gate.name, self.started)
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]

    def seconds_left(self, now: float) -> float:
        """Returns the rest of the time limit. A clock that was set back does not extend it beyond its length."""
        seconds = float(self.gate.timeout_seconds)
        return min(max(0.0, self.started + seconds - now), seconds)


@dataclass(frozen=True)
class GateAnswer:
    passed: bool
    message: str

    @classmethod
    def of(cls, passed: bool, message: str) -> GateAnswer:
        return cls(passed, shown(message, MAX_MESSAGE_LENGTH))


@dataclass
class GateProgress:
    """What a gate that has not answered yet said last, for the message when its time is over."""

    text: str = ""


class GateUnavailableError(Exception):
    """The gate cannot be evaluated now. It is evaluated again until its time is over."""


class GateRefusedError(Exception):
    """A response that another attempt hardly changes. The gate fails after three in a row."""


async def repeat(evaluate: Callable[[], Awaitable[T | None]], progress: GateProgress, pause: float) -> T:
    """Evaluates until there is a result. Raises GateRefusedError after several refusals in a row."""
    refusals = 0
    while True:
        try:
            result = await evaluate()
            if result is not None:
                return result
            refusals = 0
        except GateUnavailableError as error:
            progress.text = str(error)
        except GateRefusedError as error:
            progress.text = str(error)
            refusals += 1
            if refusals >= MAX_REFUSALS:
                raise
        await asyncio.sleep(pause)


def shown(text: str, limit: int) -> str:
    """Returns text of another program without control characters, cut to a length."""
    plain = "".join(each if (each == "\n" or unicodedata.category(each)[0] != "C") else " " for each in text).strip()
    return plain if len(plain) <= limit else f"{plain[: limit - 1]}…"
