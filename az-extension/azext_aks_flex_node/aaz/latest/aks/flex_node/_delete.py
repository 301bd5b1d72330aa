from __future__ import annotations

from typing import Any

from azure.cli.core.aaz import register_command
from azure.core.exceptions import HttpResponseError
from knack.log import get_logger

from azext_aks_flex_node import arguments
from azext_aks_flex_node.commands import FlexNodeCommand
from azext_aks_flex_node.operations import DeleteNode, GetNode
from azext_aks_flex_node.vendored.node_summary import deletion_text

CONFIRMATION = (
    "The configuration URL and token are revoked immediately. The daemon of a managed node drains the node, removes "
    "it from the cluster and removes the installed components from the machine, unless the machine's policy forbids "
    "it. Delete this flex node?"
)
logger = get_logger(__name__)


@register_command("aks flex-node delete", confirmation=CONFIRMATION)
class Delete(FlexNodeCommand):
    """Delete a flex node.

    Revokes the configuration URL and the token immediately. The daemon of a managed node drains
    the node, removes it from the cluster and removes the installed components, unless the
    policy of the machine forbids it. For such a node, and one that is not managed, run
    `aks-flex-node unbootstrap` on the machine.

    :example: Delete a node without confirmation
        az aks flex-node delete -g my-rg --cluster my-cluster --name edge-1 --yes
    """

    AZ_SUPPORT_NO_WAIT = True

    @classmethod
    def add_arguments(cls, schema: Any) -> None:
        arguments.node(schema)
        arguments.self_hosted(schema)

    def execute(self) -> None:
        """Prints nothing on success, as other delete commands of az do."""
        name, found = self.ctx.options["name"], self._found()
        done = DeleteNode(self.ctx)()
        if done is None:
            logger.warning("The flex node %s was not found.", name)
            return
        if found and (text := deletion_text(name, found)):
            logger.warning(text)
        for each in done.get("azureResources", ()):
            logger.warning("Removed by the agent. If it remains, run: %s", each["command"])

    def _found(self) -> dict[str, Any] | None:
        """Reads the node, to tell what happens to its machine. Not every caller may read it."""
        try:
            return dict(GetNode(self.ctx)())
        except HttpResponseError as error:
            if error.status_code not in {403, 404}:
                raise
            return None
