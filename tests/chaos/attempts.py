"""A node under test: its machine and its desired state."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import urllib3

from tests.chaos.expected_state import Wanted
from tests.managed_node import ManagedLabNode

if TYPE_CHECKING:
    from aks_flex_lab.lab import Lab
    from aks_flex_lab.machines.machine import EdgeMachine

PATIENCE = 60.0  # seconds of retries while the provider is unavailable


@dataclass
class Tried:
    managed: ManagedLabNode
    wanted: Wanted
    # Operations on one machine run in order; those on different machines run concurrently.
    lane: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1))

    @classmethod
    def joined(cls, lab: Lab, machine: EdgeMachine) -> Tried:
        wanted = Wanted()
        managed = ManagedLabNode.make(lab, machine, **wanted.properties)
        managed.join()
        return cls(managed, replace(wanted, secret=managed.principal.secret))

    @property
    def name(self) -> str:
        return self.managed.name

    @property
    def machine(self) -> EdgeMachine:
        return self.managed.machine

    def want(self, *, downgrade: bool = False, **changes: Any) -> str:
        """Changes the desired state, and returns the version that the provider assigned."""
        wanted = replace(self.wanted, **changes)
        query = "&allowDowngrade=true" if downgrade else ""
        end = time.monotonic() + PATIENCE
        while True:
            try:
                version = self.managed.update(wanted.secret, query, **wanted.properties)
            except urllib3.exceptions.HTTPError:  # the provider is restarting
                assert time.monotonic() < end, "the provider stays away"
                time.sleep(0.2)
            else:
                self.wanted = wanted
                return version

    def shell(self, script: str, *, check: bool = True) -> str:
        return self.machine.run("sh", "-c", script, check=check).out.strip()
