from __future__ import annotations

from typing import Any

from azure.cli.core.aaz import AAZBoolArg, AAZIntArg, register_command
from azure.cli.core.azclierror import ArgumentUsageError
from knack.log import get_logger

from azext_aks_flex_node import arguments
from azext_aks_flex_node.commands import FlexNodeCommand
from azext_aks_flex_node.tables import pool_rows
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

    OPTIONS = (
        *arguments.pool(),
        arguments.option(AAZIntArg, "revision", "Number of the revision. Default: the newest."),
        arguments.option(arguments.WordsArg, "nodes", "Space-separated names of nodes of the pool. Default: all."),
        arguments.option(AAZBoolArg, "allow_downgrade", "Allow older versions than the nodes have."),
        arguments.option(
            AAZBoolArg,
            "override_rollout",
            "With one node in --nodes: ignore barred revisions and the active roll-out. It is audited.",
        ),
    )

    def execute(self) -> Any:
        args = self.ctx.options
        if args.get("override_rollout") and len(args.get("nodes", ())) != 1:
            raise ArgumentUsageError("--override-rollout is for exactly one node.", "Name it with --nodes.")
        asked = {
            "revision": args.get("revision"),
            "nodeNames": args.get("nodes"),
            "allowDowngrade": args.get("allow_downgrade"),
            "overrideRollout": args.get("override_rollout"),
        }
        body = {name: value for name, value in asked.items() if value is not None}
        done = self.pool("apply", body=body)
        for each in done["refused"]:
            logger.warning("%s was not changed: %s", each["name"], printable(each["error"]["message"]))
        return done


@register_command("aks flex-node pool allow-revision")
class AllowRevisionOfPool(FlexNodeCommand):
    """Lift the bar of a revision that failed in a roll-out, to try it again.

    :example: Allow a revision
        az aks flex-node pool allow-revision -g my-rg --cluster my-cluster --name edge --revision 2
    """

    ROWS = pool_rows

    OPTIONS = (
        *arguments.pool(),
        arguments.option(AAZIntArg, "revision", "Number of the revision.", required=True),
    )

    def execute(self) -> Any:
        return self.pool("allowRevision", body={"revision": self.ctx.options["revision"]})
