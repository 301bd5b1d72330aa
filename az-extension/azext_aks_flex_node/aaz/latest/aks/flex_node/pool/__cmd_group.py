from __future__ import annotations

from azure.cli.core.aaz import AAZCommandGroup, register_command_group


@register_command_group("aks flex-node pool")
class FlexNodePoolGroup(AAZCommandGroup):
    """Manage pools of flex nodes: one template for many nodes.

    A changed template is a new revision. It reaches the nodes of the pool in waves with
    `az aks flex-node rollout create`, or at once with `az aks flex-node pool apply`.
    """
