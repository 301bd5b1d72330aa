"""The nodes of a soak: those of the chaos tests, which can also be paused, and leave and join again."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import urllib3

from aks_flex_node.api.contract import CORDONED_ANNOTATION
from tests.agents import flex
from tests.chaos.checking import HOME
from tests.chaos.tried import Tried
from tests.chaos.wanted import Wanted
from tests.followed import Followed
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aks_flex_node.lab.lab import Lab
    from aks_flex_node.lab.machines.machine import Machine

WORK = "aks-flex-node-work"
LEAVE_SECONDS = 240.0
JOIN_SECONDS = 300.0


@dataclass(frozen=True)
class Soaked(Wanted):
    """What is wanted of a node, and whether it is to wait with it."""

    paused: bool = False

    @property
    def properties(self) -> dict[str, Any]:
        told = super().properties
        settings = told["nodeConfig"]
        policy = {**settings["updatePolicy"], "paused": self.paused}
        return {**told, "nodeConfig": {**settings, "updatePolicy": policy}}


def join_all(lab: Lab, machines: Sequence[Machine]) -> list[Tried]:
    with ThreadPoolExecutor(len(machines)) as pool:
        return list(pool.map(lambda machine: _joined(lab, machine), machines))


def _joined(lab: Lab, machine: Machine) -> Tried:
    wanted = Soaked()
    followed = Followed.make(lab, machine, **wanted.properties)
    followed.join()
    return Tried(followed, replace(wanted, secret=followed.principal.secret))


def leave_and_return(it: Tried) -> None:
    """Its resource is deleted, the machine stops being a node by itself, and joins under a new one of that name."""
    _patiently(it.followed.delete, "the provider takes the deletion")
    until(lambda: has_left(it), f"{it.name} leaves", LEAVE_SECONDS)
    it.followed.properties = dict(it.wanted.properties)
    _patiently(it.followed.join, f"{it.name} joins again")


def has_left(it: Tried) -> bool:
    is_there = it.machine.run("test", "-e", HOME, check=False).ok
    return not is_there and not it.machine.run("systemctl", "is-active", WORK, check=False).ok


def _patiently(doing: Callable[[], object], what: str) -> None:
    """As a person does it while services come and go: once more, for a while."""
    end = time.monotonic() + JOIN_SECONDS
    while True:
        try:
            doing()
        except (urllib3.exceptions.HTTPError, AssertionError) as error:
            if time.monotonic() > end:
                raise AssertionError(f"{what}: not within {JOIN_SECONDS:.0f} s: {error}") from error
            time.sleep(1)
        else:
            return


def left_over(it: Tried) -> list[str]:
    """What is not to be there once it is quiet: work that goes on, failed units, marks of ours, partial downloads."""
    failed = it.shell("systemctl --failed --no-legend --plain | cut -d' ' -f1 | grep -v '^systemd-'", check=False)
    partial = it.shell("find /var/cache/aks-flex-node /opt/aks-flex-node -name '*.partial' 2>/dev/null", check=False)
    told = {
        f"failed units: {failed.split()}": bool(failed),
        f"partial files: {partial.split()}": bool(partial),
        "its work still goes on": it.machine.run("systemctl", "is-active", WORK, check=False).ok,
        "our cordon is still marked": CORDONED_ANNOTATION in it.followed.node()["metadata"].get("annotations", {}),
        "`aks-flex-node health` says no": not flex(it.machine, "health", check=False).ok,
    }
    return [f"{it.name}: {sentence}" for sentence, true in told.items() if true]
