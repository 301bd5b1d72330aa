from __future__ import annotations

from typing import Any

from azure.cli.core.aaz import register_command

from azext_aks_flex_node import arguments
from azext_aks_flex_node.commands import FlexNodeCommand
from azext_aks_flex_node.operations import GetNode
from azext_aks_flex_node.tables import table_rows


@register_command("aks flex-node show")
class Show(FlexNodeCommand):
    r"""Show the configuration and status of a flex node.

    :example: Show a node
        az aks flex-node show -g my-rg --cluster my-cluster --name edge-1
    :example: Show why a node is not Ready
        az aks flex-node show -g my-rg --cluster my-cluster --name edge-1 -o tsv \
        --query "properties.status.conditions[?type=='Ready'] | [0].message"
    """

    ROWS = table_rows

    @classmethod
    def add_arguments(cls, schema: Any) -> None:
        arguments.node(schema)
        arguments.self_hosted(schema)

    def execute(self) -> Any:
        return GetNode(self.ctx)()
