from __future__ import annotations

from dataclasses import replace
from typing import Any

from azure.cli.core.aaz import register_command
from azure.cli.core.azclierror import MutuallyExclusiveArgumentError, ValidationError
from azure.core.exceptions import HttpResponseError
from knack.log import get_logger

from azext_aks_flex_node import arguments, option_values
from azext_aks_flex_node.commands import FlexNodeCommand
from azext_aks_flex_node.operations import PutNode
from azext_aks_flex_node.secret_input import client_secret
from azext_aks_flex_node.tables import table_rows
from azext_aks_flex_node.vendored import node_changes

logger = get_logger(__name__)


@register_command("aks flex-node create")
class Create(FlexNodeCommand):
    r"""Describe a new flex node.

    Nothing is done to any machine: one joins with the URL that --output-config-url gives, or
    with the line that `az aks flex-node join-command` prints.

    :example: A node that joins by a token, and the command for its machine
        CONFIG_URL=$(az aks flex-node create -g my-rg --cluster my-cluster --name edge-1 \
        --auth-method bootstrapToken --output-config-url --query properties.configUrl -o tsv)
        aks-flex-node agent --config-url "$CONFIG_URL"
    :example: A node that is followed for life, as a service principal whose secret you are asked for
        az aks flex-node create -g my-rg --cluster my-cluster --name edge-1 \
        --auth-method servicePrincipal --client-id 11111111-2222-3333-4444-555555555555 \
        --continuous-monitoring
    :example: A node with labels, a taint, and versions of its own
        az aks flex-node create -g my-rg --cluster my-cluster --name edge-1 \
        --labels site=north rack=7 --taints edge=yes:NoSchedule --kubernetes-version 1.34.4
    :example: A node of a self-hosted resource provider, as its administrator
        az aks flex-node create -g my-rg --cluster my-cluster --name edge-1 \
        --rp-endpoint https://host:8443 --rp-key-file admin.key --rp-ca-file ca.crt
    """

    AZ_SUPPORT_NO_WAIT = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, table_transformer=table_rows, **kwargs)

    @classmethod
    def _build_arguments_schema(cls, *args: Any, **kwargs: Any) -> Any:
        schema = super()._build_arguments_schema(*args, **kwargs)
        arguments.node(schema, new=True)
        arguments.node_options(schema)
        return schema

    def execute(self) -> Any:
        args = self.ctx.options
        refuse_lost_url(args)
        options, body = option_values.node_options_of(args), option_values.properties_from_file(args) or {}
        properties = option_values.apply_options(body, options)
        if option_values.is_secret_missing({}, properties):
            properties = option_values.apply_options(body, replace(options, client_secret=client_secret()))
        _warn_of_idle_identity(properties)
        try:
            return PutNode(self.ctx, properties, url=bool(args.get("output_config_url")))()
        except HttpResponseError as error:
            if error.status_code != 412:
                raise
            raise ValidationError(
                f"There is a flex node {args['name']} already.", "Change it with `az aks flex-node update`."
            ) from None


def refuse_lost_url(args: dict[str, Any]) -> None:
    if args.get("output_config_url") and args.get("no_wait"):
        raise MutuallyExclusiveArgumentError(
            "--no-wait prints nothing, and the URL of --output-config-url would be lost.", "Leave one of them out."
        )


def _warn_of_idle_identity(properties: dict[str, Any]) -> None:
    if node_changes.auth_method_of(properties) == node_changes.NO_IDENTITY or properties.get("continuousMonitoring"):
        return
    if not properties.get("kubernetesAuth", {}).get("useAzureAuth"):
        logger.warning(
            "This node has an identity and no use for it. --continuous-monitoring lets the agent follow changes; "
            "--kubernetes-auth certificate lets the kubelet join by it."
        )
