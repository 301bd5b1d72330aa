from __future__ import annotations

from azure.cli.core.aaz import AAZCommandGroup, register_command_group


@register_command_group("aks flex-node rollout")
class RolloutGroup(AAZCommandGroup):
    """Roll out revisions of pools in waves, with checks between them.

    A roll-out that fails is halted, or brings its nodes back to the revision before.
    """
