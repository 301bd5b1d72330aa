from __future__ import annotations

from typing import Any

from azure.cli.core.aaz import register_command
from knack.log import get_logger

from azext_aks_flex_node import arguments
from azext_aks_flex_node.commands import FlexNodeCommand
from azext_aks_flex_node.operations import RegenerateToken

FORMATTED = {"-o", "--output", "--query"}
logger = get_logger(__name__)


@register_command("aks flex-node join-command")
class JoinCommand(FlexNodeCommand):
    r"""Print the one line by which a machine becomes this node.

    It is to be run there as root. Whoever has it can be this node: it is a secret until it is
    used. A config URL from before stops working.

    :example: To copy and paste
        az aks flex-node join-command -g my-rg --cluster my-cluster --name edge-1
    :example: Run it on the machine at once
        az aks flex-node join-command -g my-rg --cluster my-cluster --name edge-1 -o tsv \
        | ssh root@edge-1 sh
    """

    @classmethod
    def _build_arguments_schema(cls, *args: Any, **kwargs: Any) -> Any:
        schema = super()._build_arguments_schema(*args, **kwargs)
        arguments.node(schema, ids=False)  # one line, one machine: of several, nobody would know which is whose
        arguments.self_hosted(schema)
        return schema

    def execute(self) -> Any:
        """As plain text, which can be pasted, unless a format was asked for."""
        made = RegenerateToken(self.ctx)()
        logger.warning(
            "Run it as root on the machine; good until %s, for one machine, once. A config URL from before no longer "
            "works.",
            made["configUrlExpires"],
        )
        line = f"aks-flex-node agent --config-url '{made['configUrl']}'"
        if FORMATTED & set(self.cli_ctx.data.get("safe_params") or ()):
            return line
        print(line)
        return None
