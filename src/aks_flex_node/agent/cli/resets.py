"""One reset, from the words of a command to the list of what stayed on purpose."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

from aks_flex_node.agent.cli import ahead, door, progress, screen
from aks_flex_node.agent.cluster.farewell import Farewell
from aks_flex_node.agent.cluster.own import node_api
from aks_flex_node.agent.components.agent import CURRENT
from aks_flex_node.agent.engine.engine import Engine
from aks_flex_node.agent.engine.events import Events
from aks_flex_node.agent.engine.locking import alone
from aks_flex_node.agent.leaving import Leave
from aks_flex_node.agent.watching import Watcher
from aks_flex_node.errors import FlexError
from aks_flex_node.host.actions import WriteFile
from aks_flex_node.host.dry import DryHost

if TYPE_CHECKING:
    from aks_flex_node.agent.config.models import NodeConfig

PROVIDER_SECONDS = 5.0  # a resource provider takes a Node away within a second of its last word


def reset(config: NodeConfig, *, keep_artifacts: bool, seconds: float) -> None:
    start = time.monotonic()
    with alone():
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # a terminal that goes away does not stop us half-way
        engine = door.engine(config)
        farewell = _farewell(engine.config, door.node_name(engine), seconds)
        lines = progress.Lines()
        back = ahead.take_back(engine, lines.note)
        leave = Leave(engine, farewell, lines, keep_artifacts=keep_artifacts, take_back=back)
        remains = leave.run()
    for line in leave.left_on_purpose():
        screen.say(f"left on purpose: {line}")
    for line in leave.to_type:
        whom = "Azure" if line.startswith("az ") else "the cluster"
        screen.say(f"for somebody who may change {whom}: {line}")
    if remains:
        raise FlexError(
            "reset-incomplete",
            "\n".join(["These things of the node are still there:", *remains]),
            "Run the same command again: it goes on where it stopped.",
            again=True,
        )
    screen.say(f"This machine is no longer a node, and nothing of it was found ({time.monotonic() - start:.1f} s).")


def _farewell(config: NodeConfig, node: str, seconds: float) -> Farewell | None:
    """There is nobody to say goodbye to for a machine that never got a certificate."""
    if not door.has_joined(config) or not config.node.kubelet.server_url:
        return None
    patience = PROVIDER_SECONDS if Path(CURRENT).exists() else 0.0
    return Farewell(node_api(config), node, seconds, patience)


def show_reset(config: NodeConfig) -> None:
    """What a reset would do, found out by doing it to nothing."""
    real = door.engine(config)
    host = DryHost(real.host)
    engine = Engine(host, config, real.machine, real.ledger.copy(host), Events())
    Leave(engine, None, Watcher()).run()
    if _farewell(real.config, door.node_name(real), 0):
        screen.show(f"drain and cordon node {door.node_name(real)}, and say that it left")
    own = {*engine.ledger.places, f"{config.paths.data_dir}/state.json"}
    shown = [action for action in host.done if not (isinstance(action, WriteFile) and action.path in own)]
    lines = [*(str(action) for action in shown), *ahead.in_azure(real.host, config)]
    for line in lines:
        screen.show(line)
    if not lines:
        screen.show("Nothing to do.")
