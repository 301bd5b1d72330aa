"""A component is four functions: desired, observe, plan, removal.

Install, verify, drift, repair and removal follow from them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from aks_flex_node.agent.reconcile import observer, planner

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from aks_flex_node.agent.config.models import NodeConfig
    from aks_flex_node.agent.machine import Machine
    from aks_flex_node.agent.reconcile.ledger import OwnedResources
    from aks_flex_node.agent.reconcile.observer import Facts
    from aks_flex_node.agent.reconcile.resources import Spec
    from aks_flex_node.host.actions import Action
    from aks_flex_node.host.host import Host


@dataclass(frozen=True)
class Component:
    name: str
    title: str
    desired: Callable[[NodeConfig, Machine], Spec]  # pure: what should be true on such a machine
    observe: Callable[[Host, Spec, OwnedResources], Facts] = observer.observe  # reads only: what is true
    plan: Callable[[Spec, Facts], Iterator[Action]] = planner.plan  # pure: what to do about the difference
    removal: Callable[[Facts], Iterator[Action]] = planner.removal  # pure: how to leave no trace
    reapply_after_join: bool = False  # has something to do once more when the cluster has taken the node in
    timeout_seconds: float = 300.0  # what it may take at most
