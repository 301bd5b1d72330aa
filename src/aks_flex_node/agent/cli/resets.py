"""One reset, from the words of a command to the list of what stayed on purpose."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from aks_flex_node.agent.cli import door, progress, screen
from aks_flex_node.agent.cluster.farewell import Farewell
from aks_flex_node.agent.cluster.proof import node_api
from aks_flex_node.agent.components.sequence import SEQUENCE
from aks_flex_node.agent.engine.locking import alone
from aks_flex_node.agent.engine.resources import Spec
from aks_flex_node.agent.leaving import Leave
from aks_flex_node.errors import FlexError

if TYPE_CHECKING:
    from aks_flex_node.agent.config.models import NodeConfig


def reset(config: NodeConfig, *, keep_artifacts: bool, seconds: float) -> None:
    start = time.monotonic()
    with alone():
        engine = door.engine(config)
        farewell = _farewell(config, engine.machine.node_name(config), seconds)
        leave = Leave(engine, farewell, progress.Lines(), keep_artifacts=keep_artifacts)
        remains = leave.run()
    for line in leave.left_on_purpose():
        screen.say(f"left on purpose: {line}")
    for line in leave.to_type:
        screen.say(f"for somebody who may change the cluster: {line}")
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
    certificate = Path(f"{config.paths.kubernetes.kubelet_dir}/pki/kubelet-client-current.pem")
    if not certificate.exists() or not config.node.kubelet.server_url:
        return None
    return Farewell(node_api(config), node, seconds)


def show_reset(config: NodeConfig) -> None:
    """What a reset would do."""
    from aks_flex_node.agent import pods

    engine = door.engine(config)
    actions = list(pods.removal(engine.host, config)) if engine.ledger.exists else []
    for component in reversed(SEQUENCE):
        facts = component.observe(engine.host, Spec(), engine.ledger.owned(component.name))
        actions += component.removal(facts)
    for action in actions:
        screen.show(str(action))
    if not actions:
        screen.show("Nothing to do.")
