from __future__ import annotations

from typing import Any

from azure.cli.core.aaz import register_command

from azext_aks_flex_node import arguments
from azext_aks_flex_node.commands import FlexNodeCommand
from azext_aks_flex_node.tables import pool_rows, revision_rows


@register_command("aks flex-node pool show")
class ShowPool(FlexNodeCommand):
    """Show a pool: its template, revision and number of nodes.

    :example: Show a pool
        az aks flex-node pool show -g my-rg --cluster my-cluster --name edge
    """

    ROWS = pool_rows

    OPTIONS = arguments.pool()

    def execute(self) -> Any:
        return self.pool()


@register_command("aks flex-node pool list")
class ListPoolsCommand(FlexNodeCommand):
    """List the pools of a cluster.

    :example: List pools as a table
        az aks flex-node pool list -g my-rg --cluster my-cluster -o table
    """

    ROWS = pool_rows

    OPTIONS = arguments.cluster()

    def execute(self) -> Any:
        return self.pages("flexNodePools")


@register_command("aks flex-node pool list-revisions")
class ListRevisionsCommand(FlexNodeCommand):
    """List the revisions of a pool's template with their changes, the newest first.

    :example: List revisions as a table
        az aks flex-node pool list-revisions -g my-rg --cluster my-cluster --name edge -o table
    """

    ROWS = revision_rows

    OPTIONS = arguments.pool(ids=False)

    def execute(self) -> Any:
        return self.pages("flexNodePools", self.ctx.options["name"], "revisions")
