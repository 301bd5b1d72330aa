from __future__ import annotations

from typing import Any

from azure.cli.core.aaz import register_command
from azure.cli.core.azclierror import MutuallyExclusiveArgumentError, ValidationError
from azure.core.exceptions import HttpResponseError
from knack.log import get_logger

from azext_aks_flex_node import arguments, option_values
from azext_aks_flex_node.commands import FlexNodeCommand
from azext_aks_flex_node.operations import ONLY_NEW
from azext_aks_flex_node.secret_input import client_secret
from azext_aks_flex_node.tables import table_rows
from azext_aks_flex_node.vendored import node_changes
from azext_aks_flex_node.vendored.node_summary import EXEC_WARNING, joins_by_exec

logger = get_logger(__name__)


@register_command("aks flex-node create")
class Create(FlexNodeCommand):
    r"""Create a flex node.

    No machine is changed. A machine joins with the URL of --output-config-url, or with the
    command that `az aks flex-node join-command` prints.

    :example: Create a node that joins with a bootstrap token, and join a machine
        CONFIG_URL=$(az aks flex-node create -g my-rg --cluster my-cluster --name edge-1 \
        --auth-method bootstrapToken --output-config-url --query properties.configUrl -o tsv)
        echo "$CONFIG_URL" | aks-flex-node agent --config-url-file -
    :example: Create a managed node with a service principal, and prompt for the secret
        az aks flex-node create -g my-rg --cluster my-cluster --name edge-1 \
        --auth-method servicePrincipal --client-id 11111111-2222-3333-4444-555555555555 \
        --continuous-monitoring
    :example: Create a node with labels, a taint and a Kubernetes version
        az aks flex-node create -g my-rg --cluster my-cluster --name edge-1 \
        --labels site=north rack=7 --taints edge=yes:NoSchedule --kubernetes-version 1.36.3
    :example: Create a node in a self-hosted resource provider with the admin key
        az aks flex-node create -g my-rg --cluster my-cluster --name edge-1 \
        --rp-endpoint https://host:8443 --rp-key-file admin.key --rp-ca-file ca.crt
    """

    AZ_SUPPORT_NO_WAIT = True
    ROWS = table_rows

    OPTIONS = (*arguments.node(new=True), *arguments.settings(), arguments.OUTPUT_URL)

    def execute(self) -> Any:
        args = self.ctx.options
        check_no_wait(args)
        options, body = option_values.node_options_of(args), option_values.properties_from_file(args) or {}
        properties = node_changes.apply_options(body, options)
        if option_values.is_secret_missing({}, properties):
            options["client_secret"] = client_secret()
            properties = node_changes.apply_options(body, options)
        _warn_unused_identity(properties)
        warn_exec(properties)
        try:
            query = {"configUrl": "true"} if args.get("output_config_url") else {}
            return self.node(method="PUT", body={"properties": properties}, query=query, headers=ONLY_NEW)
        except HttpResponseError as error:
            if error.status_code != 412:
                raise
            raise ValidationError(
                f"The flex node {args['name']} already exists.", "Use `az aks flex-node update` to change it."
            ) from None


def check_no_wait(args: dict[str, Any]) -> None:
    """Rejects --output-config-url with --no-wait: the URL would be lost."""
    if args.get("output_config_url") and args.get("no_wait"):
        raise MutuallyExclusiveArgumentError(
            "--output-config-url cannot be used with --no-wait, which prints no output.", "Remove one of the options."
        )


def warn_exec(properties: dict[str, Any]) -> None:
    if joins_by_exec(properties):
        logger.warning(EXEC_WARNING)


def _warn_unused_identity(properties: dict[str, Any]) -> None:
    if node_changes.auth_method_of(properties) == node_changes.NO_IDENTITY or properties.get("continuousMonitoring"):
        return
    if not properties.get("kubernetesAuth", {}).get("useAzureAuth"):
        logger.warning(
            "The identity of this node is not used. Set --continuous-monitoring to manage the node, or "
            "--kubernetes-auth certificate to join the kubelet with the identity."
        )
