"""Runs in a machine as `python3 - join|reset POINT`: kills the agent before or after one of its actions.

Point 0 means a complete run, which prints the number of points. Odd points are before an action, even ones after it.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING

sys.path.insert(0, "/usr/lib/aks-flex-node")

from aks_flex_node.agent import context
from aks_flex_node.agent.bootstrap.join import NodeJoin
from aks_flex_node.agent.bootstrap.unbootstrap import Unbootstrap
from aks_flex_node.agent.cli.terminal_progress import TerminalProgress
from aks_flex_node.agent.cluster.client import node_api
from aks_flex_node.agent.cluster.nodes import NodeRemoval
from aks_flex_node.agent.cluster.readiness import NodeReadiness
from aks_flex_node.agent.reconcile.lock import exclusive
from aks_flex_node.agent.reconcile.program_stager import ProgramStager
from aks_flex_node.host.real import RealHost

if TYPE_CHECKING:
    from aks_flex_node.host.actions import Action


class DyingHost(RealHost):
    def __init__(self, point: int) -> None:
        super().__init__()
        self._point = point
        self.count = 0

    def apply(self, action: Action) -> None:
        self._pass(action, "before")
        super().apply(action)
        self._pass(action, "after")

    def _pass(self, action: Action, when: str) -> None:
        self.count += 1
        if self.count == self._point:
            print(f"killed {when}: {action}", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)


def main(what: str, point: int) -> None:
    config = context.load_config(context.ConfigSelection()).config
    host = DyingHost(point)
    with exclusive():
        engine = context.make_engine(config, host)
        name = engine.machine.node_name(config)
        if what == "join":
            engine.stager = ProgramStager(config)
            NodeJoin(engine, NodeReadiness(host, config, name, print)).run()
        else:
            Unbootstrap(engine, NodeRemoval(node_api(config), name, 5), TerminalProgress()).run()
    print(f"points {host.count}")


main(sys.argv[1], int(sys.argv[2]))
