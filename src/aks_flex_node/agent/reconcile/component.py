"""A component consists of four functions: desired, observe, plan, removal.

Install, verify, drift detection, repair and removal are implemented with them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aks_flex_node.agent.reconcile import observer, planner
from aks_flex_node.lean_dataclass import frozen

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from aks_flex_node.agent.machine import Machine
    from aks_flex_node.agent.reconcile.ledger import OwnedResources
    from aks_flex_node.agent.reconcile.observer import Facts
    from aks_flex_node.agent.reconcile.resources import Spec
    from aks_flex_node.host.actions import Action
    from aks_flex_node.host.host import Host
    from aks_flex_node.settings.models import NodeConfig


@frozen
class Component:
    name: str
    title: str
    desired: Callable[[NodeConfig, Machine], Spec]  # pure: the desired state
    observe: Callable[[Host, Spec, OwnedResources], Facts] = observer.observe  # read-only: the observed state
    plan: Callable[[Spec, Facts], Iterator[Action]] = planner.plan  # pure: the actions for the difference
    removal: Callable[[Facts], Iterator[Action]] = planner.removal  # pure: the actions that restore the machine
    reapply_after_join: bool = False  # applied again when the pod CIDR is known
    timeout_seconds: float = 300.0  # time limit of an apply
