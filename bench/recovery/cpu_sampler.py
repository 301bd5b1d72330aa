"""Reads the CPU time of the daemon every few seconds during a fault."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Self

    from aks_flex_lab.machines.machine import EdgeMachine

INTERVAL = 3.0
WINDOW = 60.0
SCRIPT = "cat /proc/$(systemctl show -P MainPID aks-flex-node)/stat"


@dataclass(frozen=True)
class CpuSeconds:
    """CPU time of a process, and of the children that it has waited for, such as a sign-in to Entra ID."""

    own: float = 0.0
    children: float = 0.0

    @classmethod
    def of(cls, stat: str) -> CpuSeconds:
        """Reads the text of /proc/PID/stat."""
        fields, second = stat.rpartition(")")[2].split(), os.sysconf("SC_CLK_TCK")
        return cls(sum(map(int, fields[11:13])) / second, sum(map(int, fields[13:15])) / second)

    def since(self, before: CpuSeconds) -> CpuSeconds:
        return CpuSeconds(max(0.0, self.own - before.own), max(0.0, self.children - before.children))

    def __add__(self, other: CpuSeconds) -> CpuSeconds:
        return CpuSeconds(self.own + other.own, self.children + other.children)


def process_of(stat: str) -> str:
    """Returns what distinguishes processes, also those of different boots: PID and start time."""
    return f"{stat.split(maxsplit=1)[0]} {stat.rpartition(')')[2].split()[19]}"


def busiest_minute(samples: list[tuple[float, float]]) -> float:
    """Returns the highest use of a core in any minute, in percent, of (time, CPU seconds) pairs. A shorter
    measurement counts as a minute.
    """
    most = max(
        (
            later - earlier
            for number, (start, earlier) in enumerate(samples)
            for end, later in samples[number:]
            if end - start <= WINDOW
        ),
        default=0.0,
    )
    return 100 * most / WINDOW


class CpuSampler(threading.Thread):
    """Measures within a `with` block. The daemon may restart meanwhile, with its machine or alone."""

    def __init__(self, machine: EdgeMachine) -> None:
        super().__init__(daemon=True)
        self._machine, self._stopping = machine, threading.Event()
        self._last, self._total = ("", CpuSeconds()), CpuSeconds()
        self._samples: list[tuple[float, CpuSeconds]] = []

    @property
    def percent(self) -> float:
        """Use of a core by the daemon itself in its busiest minute."""
        return busiest_minute([(when, used.own) for when, used in self._samples])

    @property
    def percent_of_children(self) -> float:
        return busiest_minute([(when, used.children) for when, used in self._samples])

    def __enter__(self) -> Self:
        self._sample()
        self._total, self._samples = CpuSeconds(), [(time.monotonic(), CpuSeconds())]
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self.join()
        self._sample()

    def run(self) -> None:
        while not self._stopping.wait(INTERVAL):
            self._sample()

    def _sample(self) -> None:
        try:
            stat = self._machine.run("sh", "-c", SCRIPT, timeout=30).out
            process, used = process_of(stat), CpuSeconds.of(stat)
        except Exception:  # the machine or the daemon is not running
            return
        before = self._last[1] if self._last[0] == process else CpuSeconds()
        self._total += used.since(before)
        self._last = (process, used)
        self._samples.append((time.monotonic(), self._total))


@dataclass(frozen=True)
class Figure:
    """The result of one fault: seconds to recover, and the use of a core in percent."""

    seconds: float
    cpu: float
    children: float

    @classmethod
    def of(cls, seconds: float, sampler: CpuSampler) -> Figure:
        return cls(seconds, sampler.percent, sampler.percent_of_children)
