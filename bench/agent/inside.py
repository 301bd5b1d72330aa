"""Runs in a machine in place of the daemon: the same poller, at the highest rate that the provider allows.

The last line is one JSON object: memory and CPU time at intervals of a number of polls.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, "/usr/lib/aks-flex-node")
sys.argv[0] = "/usr/bin/aks-flex-node"

from aks_flex_node.agent.config_sources.provider_source import ProviderSource  # noqa: E402
from aks_flex_node.agent.daemon.controller import Controller  # noqa: E402
from aks_flex_node.agent.daemon.session import StopRequest, open_session  # noqa: E402
from aks_flex_node.agent.daemon.systemd_notifier import SystemdNotifier  # noqa: E402
from aks_flex_node.agent.managed_node import open_managed_node  # noqa: E402
from aks_flex_node.settings.base import replace  # noqa: E402 - the machine's own agent, found as above

if TYPE_CHECKING:
    from collections.abc import Callable

    from aks_flex_node.agent.daemon.session import ControllerEvent, Session
    from aks_flex_node.agent.provider.poll_result import PollResult

PAUSE = 0.04  # seconds between two polls, plus or minus a third: the provider allows 25 per second for one caller


def memory() -> int:
    """Returns the current resident memory in kilobytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))


class CountedPolls:
    """A provider client that counts responses."""

    def __init__(self, total: int, every: int) -> None:
        self.total, self.every = total, every
        self.polls = 0
        self.states: dict[str, int] = {}
        self.seen: list[dict[str, float]] = []
        self.controller: Controller

    def open(self, on_event: Callable[[ControllerEvent], None]) -> Session:
        node = open_managed_node()
        hurried = replace(node.config.provider, poll_seconds=PAUSE, wait_seconds=0)
        # The service of the machine is stopped meanwhile and must not be started again.
        node.engine.config = replace(node.config, provider=hurried, drift_policy="log")
        source = node.source
        assert isinstance(source, ProviderSource)  # noqa: S101 - the node of this benchmark is managed
        ask = source.client.poll

        def poll(version: str, wait: int) -> PollResult:
            result = ask(version, wait)
            self.note(result)
            return result

        source.client.poll = poll  # type: ignore[method-assign]
        return open_session(
            dataclasses.replace(node, source=dataclasses.replace(source, config=node.config)), on_event
        )

    def note(self, result: PollResult) -> None:
        self.polls += 1
        name = result.state.value
        self.states[name] = self.states.get(name, 0) + 1
        if self.polls % self.every == 0:
            self.seen.append({"polls": self.polls, "kib": memory(), "cpu": time.process_time()})
        if self.polls >= self.total:
            self.controller.events.put(StopRequest())


def main() -> None:
    counted = CountedPolls(int(sys.argv[1]), int(sys.argv[2]))
    start = time.monotonic()
    counted.controller = Controller(counted.open, SystemdNotifier(""))
    counted.controller.run()
    found = {"seconds": time.monotonic() - start, "states": counted.states, "seen": counted.seen}
    print(json.dumps({**found, "threads": threading.active_count()}))


main()
