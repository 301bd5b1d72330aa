from __future__ import annotations

from azure.cli.core.aaz import AAZCommandGroup, register_command_group


@register_command_group("aks flex-node")
class FlexNodeGroup(AAZCommandGroup):
    """Manage machines outside Azure that are nodes of an AKS cluster.

    A flex node is described first; then a machine joins by one command. What is wanted of it
    may be changed at any time; an agent that stays on the machine follows.
    """
