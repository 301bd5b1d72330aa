"""Samples the memory of the agents and the provider while a soak test runs."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aks_flex_lab.errors import LabError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aks_flex_lab.lab import Lab
    from tests.chaos.attempts import Tried

INTERVAL_SECONDS = 5.0  # seconds


@dataclass
class MemorySampler:
    """Samples of each process by name: time, process ID and MiB."""

    lab: Lab
    nodes: Sequence[Tried]
    seen: dict[str, list[tuple[float, int, float]]] = field(default_factory=dict)
    _over: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __enter__(self) -> MemorySampler:
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._thread:
            self._thread.join()

    def _watch(self) -> None:
        began = time.monotonic()
        while not self._over.wait(INTERVAL_SECONDS):
            for name, pid, status in self._looks():
                if rss := resident(status):
                    self.seen.setdefault(name, []).append((round(time.monotonic() - began, 1), pid, rss))

    def _looks(self) -> list[tuple[str, int, str]]:
        """Returns the processes that run now; a machine without power or a killed provider has none."""
        found = []
        if provider := self.lab.supervisor.process("provider"):
            found.append(("provider", *_child(provider.pid)))
        for node in self.nodes:
            script = "pid=$(systemctl show --value -p MainPID aks-flex-node); echo $pid; cat /proc/$pid/status"
            try:
                output = node.machine.run("sh", "-c", script, check=False, timeout=20).out
            except LabError:
                continue
            first, _, status = output.partition("\n")
            found.append((f"agent of {node.name}", int(first) if first.isdigit() else 0, status))
        return found

    def summary(self) -> dict[str, Any]:
        """Returns first, maximum and last memory, and the growth of the last process in its second half."""
        return {name: _summed(samples) for name, samples in sorted(self.seen.items())}


def _child(pid: int) -> tuple[int, str]:
    """Returns the largest of a process and its children, because the process may be only a wrapper."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        children = []
    found = [(one, _status(one)) for one in (pid, *map(int, children))]
    return max(found, key=lambda each: resident(each[1]))


def _status(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return ""


def resident(status: str) -> float:
    lines = [line for line in status.splitlines() if line.startswith("VmRSS")]
    return round(int(lines[0].split()[1]) / 1024, 1) if lines else 0.0


def _summed(samples: list[tuple[float, int, float]]) -> dict[str, float]:
    values = [rss for _, _, rss in samples]
    last = [rss for _, pid, rss in samples if pid == samples[-1][1]]
    growth = last[-1] - last[len(last) // 2]
    return {
        "first_mib": values[0],
        "most_mib": max(values),
        "last_mib": values[-1],
        "processes": len({pid for _, pid, _ in samples}),
        "growth_mib": round(growth, 1),
    }
