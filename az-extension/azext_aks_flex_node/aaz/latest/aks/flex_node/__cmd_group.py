from __future__ import annotations

from azure.cli.core.aaz import AAZCommandGroup, register_command_group


@register_command_group("aks flex-node")
class FlexNodeGroup(AAZCommandGroup):
    """Manage machines outside Azure that are nodes of an AKS cluster.

    Create a flex node first, then run its join command on a machine. The configuration can be
    changed at any time. The daemon of a managed node applies the changes.
    """
