"""What Tab offers."""

from __future__ import annotations

from typing import Any

from azure.cli.core.aaz import AAZUndefined
from azure.cli.core.commands.parameters import get_resource_name_completion_list
from azure.cli.core.decorators import Completer

ASKED = ("resource_group", "cluster_name", "rp_endpoint", "rp_key_file", "rp_ca_file")


def clusters() -> Completer:
    return get_resource_name_completion_list("Microsoft.ContainerService/managedClusters")


@Completer
def nodes(cmd: Any, prefix: str, namespace: Any, **_: Any) -> list[str]:
    """Those of the cluster that was named before."""
    from azext_aks_flex_node.aaz.latest.aks.flex_node import List  # noqa: PLC0415 - which itself offers this

    said = {name: getattr(namespace, name, None) for name in ASKED}
    found = List(cli_ctx=cmd.cli_ctx)(
        command_args={name: AAZUndefined if value is None else value for name, value in said.items()}
    )
    return [each["name"] for each in found if each["name"].lower().startswith(prefix.lower())]
