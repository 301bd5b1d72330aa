from __future__ import annotations

from typing import Any

from azure.cli.core.aaz import register_command
from knack.log import get_logger

from azext_aks_flex_node import arguments
from azext_aks_flex_node.commands import FlexNodeCommand
from azext_aks_flex_node.operations import RegenerateToken
from azext_aks_flex_node.vendored.node_summary import join_command, machine_note

FORMATTED = {"-o", "--output", "--query"}
logger = get_logger(__name__)


@register_command("aks flex-node join-command")
class JoinCommand(FlexNodeCommand):
    r"""Print the join command of a flex node.

    Run it as root on the machine. The command is a secret until it is used: any machine that
    runs it joins as this node. A previous configuration URL is revoked. The command of a node
    that lives on a machine works only there, unless --replace moves the node.

    :example: Print the join command
        az aks flex-node join-command -g my-rg --cluster my-cluster --name edge-1
    :example: Run the join command on the machine
        az aks flex-node join-command -g my-rg --cluster my-cluster --name edge-1 -o tsv \
        | ssh root@edge-1 sh
    """

    @classmethod
    def add_arguments(cls, schema: Any) -> None:
        arguments.node(schema, ids=False)  # one command per machine: with several, the output would be ambiguous
        arguments.replace_machine(schema)
        arguments.self_hosted(schema)

    def execute(self) -> Any:
        """Prints plain text that can be pasted, unless an output format is set."""
        name, replace = str(self.ctx.options["name"]), bool(self.ctx.options.get("replace"))
        created = RegenerateToken(self.ctx, replace=replace)()
        if note := machine_note(name, created, replace=replace):
            logger.warning("%s", note)
        logger.warning(
            "Run the command as root on the machine. It is valid until %s, for one use. A previous configuration URL "
            "is revoked.",
            created["configUrlExpires"],
        )
        line = join_command(str(created["configUrl"]))
        if FORMATTED & set(self.cli_ctx.data.get("safe_params") or ()):
            return line
        print(line)
        return None
