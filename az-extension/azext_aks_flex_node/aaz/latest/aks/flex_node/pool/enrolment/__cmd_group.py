from __future__ import annotations

from azure.cli.core.aaz import AAZCommandGroup, register_command_group


@register_command_group("aks flex-node pool enrolment")
class EnrolmentGroup(AAZCommandGroup):
    """Enrol many machines as nodes of a pool with one URL."""
