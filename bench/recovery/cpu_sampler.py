"""Reads the CPU time of the daemon every few seconds during a fault."""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Self

    from aks_flex_lab.machines.machine import EdgeMachine

INTERVAL = 3.0
WINDOW = 60.0
SCRIPT = 'p=$(systemctl show -P MainPID aks-flex-node); echo "$p $(cat /proc/$p/stat)"'


def cpu_seconds(stat: str) -> float:
    """Returns the CPU seconds of a process and of the children that it has waited for, from /proc/PID/stat."""
    fields = stat.rpartition(")")[2].split()
    return sum(int(ticks) for ticks in fields[11:15]) / os.sysconf("SC_CLK_TCK")


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
        self._last, self._total = ("", 0.0), 0.0
        self._samples: list[tuple[float, float]] = []

    @property
    def percent(self) -> float:
        return busiest_minute(self._samples)

    def __enter__(self) -> Self:
        self._sample()
        self._total, self._samples = 0.0, [(time.monotonic(), 0.0)]
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
            pid, _, stat = self._machine.run("sh", "-c", SCRIPT, timeout=30).out.partition(" ")
            used = cpu_seconds(stat)
        except Exception:  # the machine or the daemon is not running
            return
        before = self._last[1] if self._last[0] == pid else 0.0
        self._total += max(0.0, used - before)
        self._last = (pid, used)
        self._samples.append((time.monotonic(), self._total))
