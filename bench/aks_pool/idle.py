"""What idle nodes need: memory of the daemon, and requests to the lab's Azure, from its access log."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from aks_flex_lab.lab import Lab
    from aks_flex_lab.machines.machine import EdgeMachine

UNIT = "aks-flex-node"
REQUEST = re.compile(r'(?P<address>[\d.]+):\d+ - "\w+ (?P<path>\S+) HTTP')
TOKEN_PATH = re.compile(r"/oauth2/v2\.0/token$|/\.well-known/|/common/discovery/")


def count_requests(lines: Iterable[str], address: str) -> dict[str, int]:
    """Counts the requests of a machine in an access log: to Azure Resource Manager, and to sign in."""
    counts = {"arm": 0, "token": 0}
    for line in lines:
        found = REQUEST.search(line)
        if found and found["address"] == address:
            path = found["path"].partition("?")[0]
            counts["token" if TOKEN_PATH.search(path) else "arm"] += 1
    return counts


def parse_memory(text: str) -> dict[str, float]:
    """Parses `/proc/PID/smaps_rollup` and the line `Threads` of `/proc/PID/status`; memory in MiB."""
    found = {name: int(value) for name, value in re.findall(r"^(Rss|Pss|Threads):\s+(\d+)", text, re.MULTILINE)}
    memory = {f"{name.lower()}_mib": round(found[name] / 1024, 2) for name in ("Rss", "Pss")}
    return {**memory, "threads": found["Threads"]}


def daemon_memory(machine: EdgeMachine) -> dict[str, float]:
    pid = machine.run("systemctl", "show", "--value", "-p", "MainPID", UNIT).out.strip()
    return parse_memory(machine.run("cat", f"/proc/{pid}/smaps_rollup", f"/proc/{pid}/status").out)


def requests_a_minute(lab: Lab, machines: Mapping[str, EdgeMachine], seconds: float) -> dict[str, dict[str, float]]:
    """Waits, and returns the requests of each machine to the lab's Azure in a minute of that time."""
    log = lab.supervisor.log("azure")
    before, began = log.stat().st_size, time.monotonic()
    time.sleep(seconds)
    with log.open("rb") as file:
        file.seek(before)
        lines = file.read().decode(errors="replace").splitlines()
    minutes = (time.monotonic() - began) / 60
    counts = {side: count_requests(lines, machine.record.address) for side, machine in machines.items()}
    return {side: {kind: round(count / minutes, 2) for kind, count in each.items()} for side, each in counts.items()}
