from __future__ import annotations

from typing import Any

from azure.cli.core.aaz import AAZBoolArg, register_command
from azure.cli.core.azclierror import AzureResponseError

from azext_aks_flex_node import arguments, tables
from azext_aks_flex_node.wait_command import WaitCommand


@register_command("aks flex-node wait")
class Wait(WaitCommand):
    r"""Wait until a flex node meets a condition.

    The condition is one of --ready, --created, --updated, --deleted, --exists and --custom.

    :example: Wait until the node has joined and is Ready
        az aks flex-node wait -g my-rg --cluster my-cluster --name edge-1 --ready --timeout 300
    :example: Wait until the desired configuration is applied
        az aks flex-node wait -g my-rg --cluster my-cluster --name edge-1 \
        --custom "properties.configVersion==properties.status.appliedConfigVersion"
    """

    OPTIONS = (
        *arguments.node(),
        arguments.option(AAZBoolArg, "ready", "Wait until the node is Ready.", arg_group="Wait Condition"),
    )
    OPTION = "ready"
    QUERY = "properties.status.conditions[?type=='Ready' && status=='True'] | [0]"

    def read(self) -> dict[str, Any]:
        return dict(self.node())

    def check(self, found: dict[str, Any]) -> None:
        """Fails when the join has failed, because the node cannot become Ready."""
        status = found["properties"].get("status", {})
        cause = tables.cause(status)
        if self.waits_for_own and cause and status.get("joinState") == "Failed":
            raise AzureResponseError(
                f"The flex node {found['name']} could not join: {cause}",
                "Fix the cause, and run the output of `az aks flex-node join-command` on the machine.",
            )

    def advice(self, found: dict[str, Any]) -> str:
        return tables.cause(found["properties"].get("status", {}))
