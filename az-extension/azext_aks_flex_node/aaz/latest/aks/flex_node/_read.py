from __future__ import annotations

from typing import Any

from azure.cli.core.aaz import AAZStrArg, register_command

from azext_aks_flex_node import arguments
from azext_aks_flex_node.commands import FlexNodeCommand
from azext_aks_flex_node.tables import table_rows
from azext_aks_flex_node.vendored.node_changes import filter_text

STATES = ("Created", "ConfigFetched", "BootstrapAttempted", "Joined", "Failed", "Left")
FILTER = {"arg_group": "Filter"}


@register_command("aks flex-node show")
class Show(FlexNodeCommand):
    r"""Show the configuration and status of a flex node.

    :example: Show a node
        az aks flex-node show -g my-rg --cluster my-cluster --name edge-1
    :example: Show why a node is not Ready
        az aks flex-node show -g my-rg --cluster my-cluster --name edge-1 -o tsv \
        --query "properties.status.conditions[?type=='Ready'] | [0].message"
    """

    ROWS = table_rows

    OPTIONS = arguments.node()

    def execute(self) -> Any:
        return self.node()


@register_command("aks flex-node list")
class List(FlexNodeCommand):
    """List the flex nodes of a cluster.

    :example: List nodes as a table
        az aks flex-node list -g my-rg --cluster my-cluster -o table
    :example: List the nodes of a site that are not Ready
        az aks flex-node list -g my-rg --cluster my-cluster --ready False --label site=north -o table
    """

    ROWS = table_rows

    OPTIONS = (
        *arguments.cluster(),
        arguments.choice("ready", "Filter by the Ready condition.", ("True", "False", "Unknown"), **FILTER),
        arguments.choice("join_state", "Filter by join state.", STATES, **FILTER),
        arguments.option(AAZStrArg, "kubernetes_version", "Filter by desired Kubernetes version.", **FILTER),
        arguments.option(AAZStrArg, "pool", "Filter by pool.", **FILTER),
        arguments.option(arguments.WordsArg, "label", "Filter by labels: space-separated KEY=VALUE.", **FILTER),
    )

    def execute(self) -> Any:
        args = self.ctx.options
        fields = {"ready": "ready", "join_state": "joinState", "kubernetes_version": "version", "pool": "poolName"}
        values = {field: args.get(name) for name, field in fields.items()}
        return self.pages("flexNodeConfig", filter_text=filter_text(values, args.get("label", ())))
