"""The enrolment by which a machine that was cut off could come back, with another key and as another node."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aks_flex_rp.nodes.context import NodeContext
    from aks_flex_rp.store.pool_model import Enrolment


async def open_enrolment(context: NodeContext, cluster: str, node: str) -> Enrolment | None:
    """Returns the enrolment of a node, unless it was revoked or has expired."""
    machine = await context.store.machine_of_node(cluster, node.lower())
    found = await context.store.enrolment(cluster, machine.enrolment) if machine else None
    return found if found and not found.revoked and context.now() < found.expires else None
