"""Where the agent that stays gets what it needs: from what is kept on this machine, and from nowhere else."""

from __future__ import annotations

from pathlib import Path

from aks_flex_node.agent.cli import door
from aks_flex_node.agent.cluster.own import node_api
from aks_flex_node.agent.components.agent import CURRENT, NEXT
from aks_flex_node.agent.config import loader
from aks_flex_node.agent.following.endpoints import endpoint
from aks_flex_node.agent.following.provider import Provider
from aks_flex_node.agent.following.site import Site
from aks_flex_node.agent.following.tokens import Tokens
from aks_flex_node.agent.machine import running_program


def _waiting() -> str:
    """What is not in effect yet may have the secret that works when the old one has ended."""
    return Path(NEXT).read_text() if Path(NEXT).exists() else ""


def open_site() -> Site:
    """This machine under the configuration that is in effect now."""
    config = loader.load(Path(CURRENT), {}, {}).config
    engine = door.engine(config)
    door.open_log(engine)
    node = door.node_name(engine)
    tokens = Tokens(running_program() or engine.machine.program, lambda: Path(CURRENT).read_text(), _waiting)
    return Site(engine, node_api(engine.config), node, Provider(endpoint(config, node), config, tokens))
