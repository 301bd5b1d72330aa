"""A node whose ledger is lost is not lost: what is ours is known by its marks."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from aks_flex_node.agent.components import agent
from aks_flex_node.agent.components.sequence import ALL
from aks_flex_node.agent.engine.recovery import reconstruct

if TYPE_CHECKING:
    from aks_flex_node.agent.engine.engine import Engine


def recover(engine: Engine) -> bool:
    """Where the ledger knows of nothing, take for ours what bears our mark; whether anything does."""
    if engine.ledger.exists:
        return False
    # The network's file is known by its name, whatever its addresses were.
    machine = replace(engine.machine, pod_cidr=engine.machine.pod_cidr or "192.0.2.0/24")
    for component in ALL:
        spec = component.desired(engine.config, machine)
        engine.ledger.components[component.name] = reconstruct(engine.host, spec, engine.config.paths.install_dir)
    began = engine.host.look(f"{engine.config.paths.data_dir}/state.json") is not None
    if not began and not engine.ledger.exists:
        return False
    own = agent.COMPONENT.desired(engine.config, engine.machine).paths
    engine.ledger.owned("agent").paths.update({path: {"original": None} for path in sorted(own)})
    engine.ledger.save()
    return True
