from __future__ import annotations

from typing import Any

from azure.cli.core.aaz import register_command
from knack.log import get_logger

from azext_aks_flex_node import arguments
from azext_aks_flex_node.commands import FlexNodeCommand
from azext_aks_flex_node.operations import RevokeKey
from azext_aks_flex_node.vendored.node_summary import enrolment_note

logger = get_logger(__name__)


@register_command("aks flex-node revoke-key")
class RevokeKeyOfNode(FlexNodeCommand):
    r"""Revoke the key of a flex node, with its configuration URL.

    The node stays in the cluster. Its machine reports again after it has joined with a new join command.

    :example: Revoke the key of a machine that was stolen
        az aks flex-node revoke-key -g my-rg --cluster my-cluster --name edge-1
    """

    @classmethod
    def add_arguments(cls, schema: Any) -> None:
        arguments.node(schema)
        arguments.self_hosted(schema)

    def execute(self) -> Any:
        """Includes the name, because the results of several --ids are unordered."""
        revoked = RevokeKey(self.ctx)()
        if note := enrolment_note(revoked):
            logger.warning("%s", note)
        return {"name": str(self.ctx.options["name"]), **revoked}
