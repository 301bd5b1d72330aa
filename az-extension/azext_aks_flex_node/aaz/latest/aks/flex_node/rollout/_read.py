from __future__ import annotations

from typing import Any

from azure.cli.core.aaz import AAZIntArg, register_command

from azext_aks_flex_node import arguments
from azext_aks_flex_node.commands import FlexNodeCommand
from azext_aks_flex_node.tables import rollout_node_rows, rollout_rows
from azext_aks_flex_node.vendored.rollout_summary import NODE_STATES


@register_command("aks flex-node rollout show")
class ShowRollout(FlexNodeCommand):
    """Show a roll-out: its state, waves, and what the gates said.

    :example: Show a roll-out
        az aks flex-node rollout show -g my-rg --cluster my-cluster --pool edge --name may
    :example: Show what a roll-out waits for
        az aks flex-node rollout show -g my-rg --cluster my-cluster --pool edge --name may --query properties.waitsFor
    """

    ROWS = rollout_rows

    OPTIONS = arguments.rollout()

    def execute(self) -> Any:
        return self.rollout()


@register_command("aks flex-node rollout list")
class ListRolloutsCommand(FlexNodeCommand):
    """List the roll-outs of a pool, the newest first.

    :example: List roll-outs as a table
        az aks flex-node rollout list -g my-rg --cluster my-cluster --pool edge -o table
    """

    ROWS = rollout_rows

    OPTIONS = arguments.rollout_pool()

    def execute(self) -> Any:
        return self.pages("flexNodePools", self.ctx.options["pool_name"], "rollouts")


@register_command("aks flex-node rollout list-nodes")
class ListRolloutNodes(FlexNodeCommand):
    r"""List the nodes of a roll-out with their states.

    :example: List the failed nodes with their cause
        az aks flex-node rollout list-nodes -g my-rg --cluster my-cluster --pool edge --name may \
        --state Failed -o table
    """

    ROWS = rollout_node_rows

    OPTIONS = (
        *arguments.rollout(),
        arguments.choice("state", "Only nodes in this state.", NODE_STATES),
        arguments.option(AAZIntArg, "wave", "Only nodes of this wave."),
    )

    def execute(self) -> Any:
        args = self.ctx.options
        body = {name: args[name] for name in ("state", "wave") if args.get(name)}
        found: list[Any] = []
        while True:
            page = self.rollout("listNodes", body=body)
            found += page["value"]
            if not page.get("after"):
                return found
            body["after"] = page["after"]
