from __future__ import annotations

from collections.abc import Callable
from typing import Any

from azure.cli.core.aaz import AAZBoolArg, register_command
from azure.cli.core.azclierror import ValidationError
from azure.core.exceptions import HttpResponseError
from knack.log import get_logger

from azext_aks_flex_node import arguments, option_values
from azext_aks_flex_node.commands import FlexNodeCommand
from azext_aks_flex_node.generic_update import apply_generic_update
from azext_aks_flex_node.secret_input import client_secret
from azext_aks_flex_node.tables import table_rows
from azext_aks_flex_node.vendored import node_changes
from azext_aks_flex_node.vendored.node_summary import not_applied_text

from ._create import check_no_wait, warn_exec

Change = Callable[[dict[str, Any]], dict[str, Any]]
FLAGS = {
    "output_config_url": "configUrl",
    "allow_downgrade": "allowDowngrade",
    "override_rollout": "overrideRollout",
}
logger = get_logger(__name__)


@register_command("aks flex-node update")
class Update(FlexNodeCommand):
    r"""Update the specified settings of a flex node.

    Other settings, and concurrent changes by other clients, are kept. The daemon of a managed
    node applies the change within seconds.

    :example: Update the Kubernetes version
        az aks flex-node update -g my-rg --cluster my-cluster --node edge-1 --kubernetes-version 1.36.3
    :example: Set a label and remove another
        az aks flex-node update -g my-rg --cluster my-cluster --node edge-1 --labels site=north rack-
    :example: Change settings by their path, as in the output of `az aks flex-node show`
        az aks flex-node update -g my-rg --cluster my-cluster --node edge-1 \
        --set properties.nodeConfig.kubelet.podPidsLimit=100 properties.nodeConfig.maxPods=50
    :example: Allow updates only at weekends at night
        az aks flex-node update -g my-rg --cluster my-cluster --node edge-1 \
        --window-days Saturday Sunday --window-start 22:00 --window-minutes 120
    :example: Set a new client secret from standard input
        az aks flex-node update -g my-rg --cluster my-cluster --node edge-1 --client-secret-file - < secret
    :example: Pause and resume changes of a machine
        az aks flex-node update -g my-rg --cluster my-cluster --node edge-1 --pause
        az aks flex-node update -g my-rg --cluster my-cluster --node edge-1 --pause false
    """

    AZ_SUPPORT_NO_WAIT = True
    AZ_SUPPORT_GENERIC_UPDATE = True
    ROWS = table_rows

    OPTIONS = (
        *arguments.node(),
        *arguments.settings(),
        arguments.OUTPUT_URL,
        arguments.option(
            AAZBoolArg, "allow_downgrade", "Allow older versions than the node has.", arg_group="Versions"
        ),
        arguments.option(
            AAZBoolArg,
            "override_rollout",
            "Ignore barred revisions, and the limits of an active roll-out. It is audited.",
        ),
    )

    def execute(self) -> Any:
        args = self.ctx.options
        check_no_wait(args)
        flags = {name: "true" for option, name in FLAGS.items() if args.get(option)}
        body, options = option_values.properties_from_file(args), option_values.node_options_of(args)
        found = self.node()
        first = node_changes.writable_properties(found)
        given, options = options, options if body is not None else node_changes.keep_managed(found, options)
        stays_managed = options is not given
        if option_values.is_secret_missing(first, self._change(body, options)(first)):
            options = node_changes.NodeOptions({**options, "client_secret": client_secret()})
        written = self._write(found, self._change(body, options), body is not None, flags)
        if stays_managed and written["properties"].get("continuousMonitoring"):
            logger.warning(node_changes.stays_managed_text(found))
        return written

    def _change(self, body: dict[str, Any] | None, options: node_changes.NodeOptions) -> Change:
        """Returns the change that the command line describes, which can be applied to what another client wrote."""

        def change(properties: dict[str, Any]) -> dict[str, Any]:
            changed = node_changes.apply_options(properties if body is None else body, options)
            return apply_generic_update(changed, self.ctx.generic_update_args)

        return change

    def _write(self, found: dict[str, Any], change: Change, replaces: bool, flags: dict[str, str]) -> dict[str, Any]:
        def put(properties: dict[str, Any], etag: str, is_last: bool) -> dict[str, Any] | None:
            try:
                guard = {"If-Match": etag}
                return dict(self.node(method="PUT", body={"properties": properties}, query=flags, headers=guard))
            except HttpResponseError as error:
                if error.status_code != 412 or is_last:
                    raise
            return None

        always = not flags.keys().isdisjoint({"configUrl", "allowDowngrade"})
        try:
            written = node_changes.write_changed(found, self.node, put, change, replaces=replaces, always=always)
        except node_changes.ConflictingChangesError as error:
            raise ValidationError(
                f"Another client changed the flex node {found['name']} at the same time: {error}.",
                "Check the node with `az aks flex-node show`, and run the command again.",
            ) from None
        if written is None:
            logger.warning("No changes.")
            return found
        _warn_revoked_url(written, "configUrl" in flags)
        if text := not_applied_text(written["name"], written):
            logger.warning(
                "%s To apply it, run `az aks flex-node join-command`, and run the command that it prints on the "
                "machine.",
                text,
            )
        return written


def _warn_revoked_url(written: dict[str, Any], has_url: bool) -> None:
    properties = written["properties"]
    warn_exec(properties)
    token = not properties.get("kubernetesAuth", {}).get("useAzureAuth")
    if token and properties["status"].get("joinState") != "Joined" and not has_url:
        logger.warning(
            "A previous configuration URL is revoked. Run `az aks flex-node join-command` to create a new one."
        )
