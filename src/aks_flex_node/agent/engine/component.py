"""A component is four functions. Install, verify, drift, repair, dry run and removal follow from them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from aks_flex_node.agent.engine import observing, planning

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from aks_flex_node.agent.config.models import NodeConfig
    from aks_flex_node.agent.engine.ledger import Owned
    from aks_flex_node.agent.engine.observing import Facts
    from aks_flex_node.agent.engine.resources import Spec
    from aks_flex_node.agent.machine import Machine
    from aks_flex_node.host.actions import Action
    from aks_flex_node.host.host import Host


@dataclass(frozen=True)
class Component:
    name: str
    title: str
    desired: Callable[[NodeConfig, Machine], Spec]  # pure: what should be true on such a machine
    observe: Callable[[Host, Spec, Owned], Facts] = observing.observe  # reads only: what is true
    plan: Callable[[Spec, Facts], Iterator[Action]] = planning.plan  # pure: what to do about the difference
    removal: Callable[[Facts], Iterator[Action]] = planning.removal  # pure: how to leave no trace
    again: bool = False  # has something to do once more when the cluster has taken the node in
    seconds: float = 300.0  # what it may take at most
