"""The bootstrap data of a flex node pool, which `listBootstrapData` returns: parses it, and converts it to a
configuration document. Pure functions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aks_flex_node.agent.aks_pool.machine_document import object_at
from aks_flex_node.agent.config.pool_names import convert_pool_value, split_labels
from aks_flex_node.agent.config.sources import POOL_SETTINGS, nest
from aks_flex_node.errors import FlexError
from aks_flex_node.lean_dataclass import frozen
from aks_flex_node.settings.secret import Secret
from aks_flex_node.settings.table import by_path

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aks_flex_node.agent.aks_pool.pool_ids import PoolId
    from aks_flex_node.settings.table import ConfigKey

TOKEN = "azure.bootstrapToken.token"  # noqa: S105
TYPES = {"string": str, "secret": str, "integer": int, "list": list, "map": dict}


@frozen
class BootstrapData:
    """The pool's settings for nodes that join, and the token, which is valid for one hour."""

    token: Secret
    settings: Mapping[str, Any]  # a configuration document without the token


def parse_bootstrap_data(document: Mapping[str, Any], pool: PoolId) -> BootstrapData:
    """Parses a response. Ignores fields that later versions of the API may add. Raises FlexError
    `aks-pool-data-invalid` if the data is not sufficient for a join.
    """
    values = {path: _value(document, by_path()[path]) for path in (TOKEN, *POOL_SETTINGS)}
    required = (TOKEN, "node.kubelet.serverURL", "node.kubelet.caCertData", "kubernetes.version")
    if missing := [by_path()[path].setting.aks or path for path in required if not values[path]]:
        raise data_invalid_error(pool, f"it has no {', '.join(missing)}")
    token = Secret(values.pop(TOKEN))
    # Labels that only the cluster can set are left to the cluster.
    values["node.labels"], _ = split_labels(values["node.labels"] or {})
    settings = {path: value for path, value in values.items() if value}
    cluster = {"azure.targetCluster.resourceId": pool.cluster_id, "azure.targetAgentPoolName": pool.pool}
    return BootstrapData(token, nest({**cluster, **settings}))


def _value(document: Mapping[str, Any], key: ConfigKey) -> Any:
    """Returns the value of a setting in bootstrap data, under its name there; None for one of another type."""
    name = key.setting.aks or key.path
    *sections, field = name.split(".")
    for section in sections:
        document = object_at(document, section)
    value = document.get(field)
    value = value.strip() if isinstance(value, str) else value
    return convert_pool_value(name, value) if isinstance(value, TYPES[key.kind]) else None


def data_invalid_error(pool: PoolId, cause: str) -> FlexError:
    return FlexError(
        "aks-pool-data-invalid",
        f"The response for the bootstrap data of {pool} cannot be used: {cause}.",
        "Check `azure.resourceManager` and the proxy: another server may have answered. Run "
        f"`{pool.bootstrap_data_command}` to see what AKS returns.",
        retryable=True,
    )
