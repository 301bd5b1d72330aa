"""Which taints a node should have, and which it once should have had: those alone may be taken away from its Node."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from aks_flex_node.rp.clusters.taints import Taints, place

if TYPE_CHECKING:
    from aks_flex_node.rp.store.store import Node

FORMER = "formerTaints"  # beside the join state
MOST = 100  # that are remembered of a node: the latest


def taints_of(node: Node) -> Taints:
    former = frozenset((key, effect) for key, effect in node.join.get(FORMER, ()))
    return Taints(tuple(node.config["node"]["taints"]), former)


def with_former_taints(node: Node, before: Node | None) -> Node:
    """In the same write as what replaces them: so that nothing has to be remembered of it later."""
    if before is None:
        return node
    now = {place(each) for each in node.config["node"]["taints"]}
    earlier = [place(each) for each in before.config["node"]["taints"]]
    known = dict.fromkeys([*((key, effect) for key, effect in before.join.get(FORMER, ())), *earlier])
    former = [[key, effect] for key, effect in known if (key, effect) not in now]
    return replace(node, join={**node.join, FORMER: former[-MOST:]}) if former else node
