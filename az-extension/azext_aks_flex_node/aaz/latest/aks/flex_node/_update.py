from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from azure.cli.core.aaz import AAZBoolArg, register_command
from azure.cli.core.azclierror import ValidationError
from azure.core.exceptions import HttpResponseError
from knack.log import get_logger

from azext_aks_flex_node import arguments, option_values
from azext_aks_flex_node.commands import FlexNodeCommand
from azext_aks_flex_node.operations import GetNode, PutNode
from azext_aks_flex_node.secret_input import client_secret
from azext_aks_flex_node.tables import table_rows
from azext_aks_flex_node.vendored import node_changes

from ._create import refuse_lost_url

ATTEMPTS = 4  # at a node that others change at the same time
logger = get_logger(__name__)


@dataclass(frozen=True)
class UpdateFlags:
    """How an update is to be done."""

    url: bool
    downgrade: bool


@register_command("aks flex-node update")
class Update(FlexNodeCommand):
    """Change a flex node: what is said, and nothing else.

    What somebody else changes at the same time is not undone. Where an agent stays on the
    machine, it follows within seconds.

    :example: Another version of Kubernetes
        az aks flex-node update -g my-rg --cluster my-cluster --node edge-1 --kubernetes-version 1.34.4
    :example: Set a label, and remove another
        az aks flex-node update -g my-rg --cluster my-cluster --node edge-1 --labels site=north rack-
    :example: A new secret of its service principal, from standard input
        az aks flex-node update -g my-rg --cluster my-cluster --node edge-1 --client-secret-file - < secret
    :example: Hold a machine as it is, and later go on
        az aks flex-node update -g my-rg --cluster my-cluster --node edge-1 --pause
        az aks flex-node update -g my-rg --cluster my-cluster --node edge-1 --pause false
    """

    AZ_SUPPORT_NO_WAIT = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, table_transformer=table_rows, **kwargs)

    @classmethod
    def _build_arguments_schema(cls, *args: Any, **kwargs: Any) -> Any:
        schema = super()._build_arguments_schema(*args, **kwargs)
        arguments.node(schema)
        arguments.node_options(schema)
        schema.allow_downgrade = AAZBoolArg(
            options=["--allow-downgrade"], arg_group="Versions", help="Versions older than the node's are meant."
        )
        return schema

    def execute(self) -> Any:
        args = self.ctx.options
        refuse_lost_url(args)
        how = UpdateFlags(bool(args.get("output_config_url")), bool(args.get("allow_downgrade")))
        body, options = option_values.properties_from_file(args), option_values.node_options_of(args)
        found = GetNode(self.ctx)()
        first = node_changes.writable_properties(found)
        if option_values.is_secret_missing(
            first, option_values.apply_options(first if body is None else body, options)
        ):
            options = replace(options, client_secret=client_secret())
        return self._written(found, body, options, how)

    def _written(
        self, found: dict[str, Any], body: dict[str, Any] | None, options: node_changes.NodeOptions, how: UpdateFlags
    ) -> dict[str, Any]:
        """Only if it still is as it was read, so that nobody's change is undone."""
        for attempt in range(1, ATTEMPTS + 1):
            first = node_changes.writable_properties(found)
            desired = option_values.apply_options(first if body is None else body, options)
            if desired == first and not (how.url or how.downgrade):
                logger.warning("Nothing is to be changed.")
                return found
            try:
                written = PutNode(self.ctx, desired, etag=found["etag"], url=how.url, downgrade=how.downgrade)()
            except HttpResponseError as error:
                if error.status_code != 412 or attempt == ATTEMPTS:
                    raise
                found = self._read_again(first, body, options)
            else:
                _warn_of_dead_url(written, how)
                return dict(written)
        raise AssertionError("The last attempt returns or raises.")

    def _read_again(
        self, first: dict[str, Any], body: dict[str, Any] | None, options: node_changes.NodeOptions
    ) -> dict[str, Any]:
        """As somebody else has left it, unless that was what these words are about."""
        found = GetNode(self.ctx)()
        lost = (
            ["all of it"]
            if body is not None
            else node_changes.conflicting_paths(first, node_changes.writable_properties(found), options)
        )
        if lost:
            raise ValidationError(
                f"Somebody else has just changed the flex node {found['name']}: {', '.join(lost)}.",
                "Look at it with `az aks flex-node show`, and say again what it is to be.",
            )
        return dict(found)


def _warn_of_dead_url(written: dict[str, Any], how: UpdateFlags) -> None:
    properties = written["properties"]
    token = not properties.get("kubernetesAuth", {}).get("useAzureAuth")
    if token and properties["status"].get("joinState") != "Joined" and not how.url:
        logger.warning("A config URL from before no longer works. `az aks flex-node join-command` makes another.")
