from __future__ import annotations

from typing import Any

from azure.cli.core.aaz import register_command
from knack.log import get_logger

from azext_aks_flex_node import arguments
from azext_aks_flex_node.commands import FlexNodeCommand
from azext_aks_flex_node.operations import DeleteNode

CONFIRMATION = (
    "Its config URL and token stop working at once. An agent that stays there takes the node apart: pods are moved "
    "away, the node leaves the cluster, and the machine is as before it joined. The machine itself stays. "
    "Delete this flex node?"
)
logger = get_logger(__name__)


@register_command("aks flex-node delete", confirmation=CONFIRMATION)
class Delete(FlexNodeCommand):
    """Delete a flex node.

    Its config URL and token stop working at once. An agent that stays on the machine takes the
    node out of the cluster, and leaves the machine as it was before it joined. A machine
    without one remains a node until `aks-flex-node unbootstrap` is run there.

    :example: Without being asked
        az aks flex-node delete -g my-rg --cluster my-cluster --name edge-1 --yes
    """

    AZ_SUPPORT_NO_WAIT = True

    @classmethod
    def _build_arguments_schema(cls, *args: Any, **kwargs: Any) -> Any:
        schema = super()._build_arguments_schema(*args, **kwargs)
        arguments.node(schema)
        arguments.self_hosted(schema)
        return schema

    def execute(self) -> Any:
        done = DeleteNode(self.ctx)()
        if done is None:
            logger.warning("There is no flex node %s.", self.ctx.options["name"])
        return done
