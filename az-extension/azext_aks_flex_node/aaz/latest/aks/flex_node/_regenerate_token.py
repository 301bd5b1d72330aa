from __future__ import annotations

from typing import Any

from azure.cli.core.aaz import register_command
from knack.log import get_logger

from azext_aks_flex_node import arguments
from azext_aks_flex_node.commands import FlexNodeCommand
from azext_aks_flex_node.operations import RegenerateToken
from azext_aks_flex_node.vendored.node_summary import machine_note

logger = get_logger(__name__)


@register_command("aks flex-node regenerate-token")
class RegenerateTokenOfNode(FlexNodeCommand):
    r"""Create a new token and configuration URL for a flex node.

    The previous token and URL are revoked.

    :example: Print a new configuration URL after a failed join
        az aks flex-node regenerate-token -g my-rg --cluster my-cluster --name edge-1 \
        --query configUrl -o tsv
    """

    @classmethod
    def add_arguments(cls, schema: Any) -> None:
        arguments.node(schema)
        arguments.replace_machine(schema)
        arguments.self_hosted(schema)

    def execute(self) -> Any:
        """Includes the name, because the results of several --ids are unordered."""
        name, replace = str(self.ctx.options["name"]), bool(self.ctx.options.get("replace"))
        created = RegenerateToken(self.ctx, replace=replace)()
        if note := machine_note(name, created, replace=replace):
            logger.warning("%s", note)
        return {"name": name, **created}
