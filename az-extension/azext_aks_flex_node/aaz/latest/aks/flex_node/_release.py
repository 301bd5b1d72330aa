from __future__ import annotations

from typing import Any

from azure.cli.core.aaz import register_command

from azext_aks_flex_node import arguments
from azext_aks_flex_node.commands import FlexNodeCommand
from azext_aks_flex_node.operations import ReleaseNode


@register_command("aks flex-node release")
class Release(FlexNodeCommand):
    """Release an enrolled node for re-imaging.

    The same machine may enrol again as this node with a new disk, and takes no use.

    :example: Release a node before its machine is re-imaged
        az aks flex-node release -g my-rg --cluster my-cluster --name edge-1
    """

    @classmethod
    def add_arguments(cls, schema: Any) -> None:
        arguments.node(schema)
        arguments.self_hosted(schema)

    def execute(self) -> Any:
        return {"name": str(self.ctx.options["name"]), **ReleaseNode(self.ctx)()}
