from __future__ import annotations

from typing import Any

from azure.cli.core.aaz import AAZBoolArg, AAZIntArg, register_command
from knack.log import get_logger

from azext_aks_flex_node import arguments
from azext_aks_flex_node.commands import FlexNodeCommand
from azext_aks_flex_node.pool_operations import ApplyPool
from azext_aks_flex_node.vendored.node_summary import printable

logger = get_logger(__name__)


@register_command("aks flex-node pool apply")
class Apply(FlexNodeCommand):
    """Bring nodes of a pool to a revision, by default all nodes to the newest one.

    A node whose configuration would be invalid is named in the output and not changed.

    :example: Bring all nodes to the newest revision
        az aks flex-node pool apply -g my-rg --cluster my-cluster --name edge
    :example: Bring one node to an earlier revision
        az aks flex-node pool apply -g my-rg --cluster my-cluster --name edge --revision 1 --nodes edge-1
    """

    @classmethod
    def _build_arguments_schema(cls, *args: Any, **kwargs: Any) -> Any:
        schema = super()._build_arguments_schema(*args, **kwargs)
        arguments.pool(schema)
        schema.revision = AAZIntArg(options=["--revision"], help="Number of the revision. Default: the newest.")
        schema.nodes = arguments.WordsArg(
            options=["--nodes"], help="Space-separated names of nodes of the pool. Default: all."
        )
        schema.allow_downgrade = AAZBoolArg(
            options=["--allow-downgrade"], help="Allow older versions than the nodes have."
        )
        return schema

    def execute(self) -> Any:
        args = self.ctx.options
        asked = {
            "revision": args.get("revision"),
            "nodeNames": args.get("nodes"),
            "allowDowngrade": args.get("allow_downgrade"),
        }
        done = ApplyPool(self.ctx, {name: value for name, value in asked.items() if value is not None})()
        for each in done["refused"]:
            logger.warning("%s was not changed: %s", each["name"], printable(each["error"]["message"]))
        return done
