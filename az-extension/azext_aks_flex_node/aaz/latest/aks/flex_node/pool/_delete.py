from __future__ import annotations

from typing import Any

from azure.cli.core.aaz import register_command
from knack.log import get_logger

from azext_aks_flex_node import arguments
from azext_aks_flex_node.commands import FlexNodeCommand
from azext_aks_flex_node.pool_operations import DeletePool

logger = get_logger(__name__)


@register_command("aks flex-node pool delete", confirmation="Delete this pool and its revisions?")
class DeletePoolCommand(FlexNodeCommand):
    """Delete a pool without nodes, with its revisions.

    :example: Delete a pool without confirmation
        az aks flex-node pool delete -g my-rg --cluster my-cluster --name edge --yes
    """

    @classmethod
    def add_arguments(cls, schema: Any) -> None:
        arguments.pool(schema)

    def execute(self) -> None:
        if not DeletePool(self.ctx)():
            logger.warning("The pool %s was not found.", self.ctx.options["name"])
