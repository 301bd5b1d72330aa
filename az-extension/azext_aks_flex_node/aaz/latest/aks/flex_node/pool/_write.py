from __future__ import annotations

from typing import Any

from azure.cli.core.aaz import AAZStrArg, register_command
from azure.cli.core.azclierror import ValidationError
from azure.core.exceptions import HttpResponseError
from knack.log import get_logger

from azext_aks_flex_node import arguments, option_values
from azext_aks_flex_node.commands import FlexNodeCommand
from azext_aks_flex_node.operations import ONLY_NEW
from azext_aks_flex_node.tables import pool_rows
from azext_aks_flex_node.vendored import node_changes

logger = get_logger(__name__)


class _Write(FlexNodeCommand):
    """The options that `create` and `update` share."""

    ROWS = pool_rows

    OPTIONS = (
        *arguments.pool(ids=False),
        arguments.option(AAZStrArg, "description", "Description of the pool."),
        *arguments.settings(of_pool=True),
    )

    def body(self, before: dict[str, Any]) -> dict[str, Any]:
        """Returns the body with the properties after the options."""
        args = self.ctx.options
        template = option_values.properties_from_file(args, of_pool=True)
        if template is None:
            template = before.get("template", {})
        description = args.get("description", before.get("description", ""))
        changed = node_changes.apply_options(template, option_values.node_options_of(args))
        return {"properties": {"template": changed, **({"description": description} if description else {})}}


@register_command("aks flex-node pool create")
class CreatePool(_Write):
    r"""Create a pool.

    :example: Create a pool with labels and a Kubernetes version
        az aks flex-node pool create -g my-rg --cluster my-cluster --name edge --labels site=north \
        --kubernetes-version 1.36.3
    """

    def execute(self) -> Any:
        try:
            return self.pool(method="PUT", body=self.body({}), headers=ONLY_NEW)
        except HttpResponseError as error:
            if error.status_code != 412:
                raise
            raise ValidationError(
                f"The pool {self.ctx.options['name']} already exists.",
                "Use `az aks flex-node pool update` to change it.",
            ) from None


@register_command("aks flex-node pool update")
class UpdatePool(_Write):
    """Update the template of a pool, as a new revision. No node is changed.

    :example: Change a label of the template, then bring all nodes to the new revision in waves
        az aks flex-node pool update -g my-rg --cluster my-cluster --name edge --labels site=south
        az aks flex-node rollout create -g my-rg --cluster my-cluster --pool edge --name may --no-wait
    """

    def execute(self) -> Any:
        found = self.pool()
        body, guard = self.body(found["properties"]), {"If-Match": found["etag"]}
        written = self.pool(method="PUT", body=body, headers=guard)
        if written["etag"] == found["etag"]:
            logger.warning("No changes.")
        elif pending := written["properties"]["pendingNodeCount"]:
            logger.warning(
                "%s of %s on another revision. Try one first with `az aks flex-node pool apply --name %s "
                "--nodes NODE`, then all in waves with `az aks flex-node rollout create --pool %s`.",
                pending,
                "1 node is" if (count := written["properties"]["nodeCount"]) == 1 else f"{count} nodes are",
                *(written["name"], written["name"]),
            )
        return written


@register_command("aks flex-node pool delete", confirmation="Delete this pool and its revisions?")
class DeletePoolCommand(FlexNodeCommand):
    """Delete a pool without nodes, with its revisions.

    :example: Delete a pool without confirmation
        az aks flex-node pool delete -g my-rg --cluster my-cluster --name edge --yes
    """

    OPTIONS = arguments.pool()

    def execute(self) -> None:
        if self.pool(method="DELETE") is None:
            logger.warning("The pool %s was not found.", self.ctx.options["name"])
