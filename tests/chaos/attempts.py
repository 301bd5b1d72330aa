"""A node that is put to the test: the machine it is, and what is wanted of it at the moment."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import urllib3

from tests.chaos.expected_state import Wanted
from tests.managed_node import Followed

if TYPE_CHECKING:
    from aks_flex_lab.lab import Lab
    from aks_flex_lab.machines.machine import EdgeMachine

PATIENCE = 60.0  # seconds for which somebody tries again while the provider is away


@dataclass
class Tried:
    followed: Followed
    wanted: Wanted
    # What happens to one machine happens in its order; what happens to others does not wait for it.
    lane: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1))

    @classmethod
    def joined(cls, lab: Lab, machine: EdgeMachine) -> Tried:
        wanted = Wanted()
        followed = Followed.make(lab, machine, **wanted.properties)
        followed.join()
        return cls(followed, replace(wanted, secret=followed.principal.secret))

    @property
    def name(self) -> str:
        return self.followed.name

    @property
    def machine(self) -> EdgeMachine:
        return self.followed.machine

    def want(self, *, downgrade: bool = False, **changes: Any) -> str:
        """Want something else from now on; the version under which the provider has it."""
        wanted = replace(self.wanted, **changes)
        query = "&allowDowngrade=true" if downgrade else ""
        end = time.monotonic() + PATIENCE
        while True:
            try:
                version = self.followed.update(wanted.secret, query, **wanted.properties)
            except urllib3.exceptions.HTTPError:  # it is being restarted
                assert time.monotonic() < end, "the provider stays away"
                time.sleep(0.2)
            else:
                self.wanted = wanted
                return version

    def shell(self, script: str, *, check: bool = True) -> str:
        return self.machine.run("sh", "-c", script, check=check).out.strip()
