"""Waits for an expected state, with a timeout and an error that names the missing state.

The timeout is long enough for a busy machine.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from aks_flex_lab.lab import Lab
    from aks_flex_lab.machines.machine import EdgeMachine


def boot_id(lab: Lab, name: str) -> str:
    return str(lab.cluster.get("node", name)["status"]["nodeInfo"]["bootID"])


def until(true: Callable[[], bool], what: str, seconds: float = 600) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, f"{what}: not within {seconds} s"
        time.sleep(0.2)


def until_slow(true: Callable[[], bool], what: str) -> None:
    """Waits for an emulated machine, which is slow on a busy host."""
    until(true, what, seconds=1800)


def until_named(machine: EdgeMachine, name: str) -> None:
    """Waits until a machine that has just booted can resolve a name."""
    ask = ("getent", "ahosts", name)
    until(lambda: machine.run(*ask, check=False, timeout=60).ok, f"{machine.name} resolves {name}")


def pod(lab: Lab, name: str) -> dict[str, object]:
    return dict(lab.cluster.get("pod", f"web-{name}")["status"])


def answers(lab: Lab, machine: EdgeMachine) -> bool:
    address = pod(lab, machine.name).get("podIP")
    return bool(address) and "It works" in machine.run("curl", "-sS", "-m2", f"http://{address}/", check=False).out
