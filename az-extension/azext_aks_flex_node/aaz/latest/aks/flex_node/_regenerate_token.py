from __future__ import annotations

from typing import Any

from azure.cli.core.aaz import register_command

from azext_aks_flex_node import arguments
from azext_aks_flex_node.commands import FlexNodeCommand
from azext_aks_flex_node.operations import RegenerateToken


@register_command("aks flex-node regenerate-token")
class RegenerateTokenOfNode(FlexNodeCommand):
    r"""Make a new token and a new config URL for a flex node; those from before stop working.

    :example: Let a machine join again, whose first join did not work
        az aks flex-node regenerate-token -g my-rg --cluster my-cluster --name edge-1 \
        --query configUrl -o tsv
    """

    @classmethod
    def _build_arguments_schema(cls, *args: Any, **kwargs: Any) -> Any:
        schema = super()._build_arguments_schema(*args, **kwargs)
        arguments.node(schema)
        arguments.self_hosted(schema)
        return schema

    def execute(self) -> Any:
        """With the name, since --ids may have named several, whose answers come in any order."""
        return {"name": self.ctx.options["name"], **RegenerateToken(self.ctx)()}
