"""Stores the settings that a machine has read from its pool, without the bootstrap token, so that later commands know
them: the machine reads them from Azure only until it is a node.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aks_flex_node.agent.aks_pool.machine_document import format_taint
from aks_flex_node.agent.aks_pool.pool_ids import configured_pool
from aks_flex_node.agent.config.parser import ConfigDocument
from aks_flex_node.agent.config.sources import SettingsSource, from_document
from aks_flex_node.agent.paths import POOL_FACTS
from aks_flex_node.host.records import RecordFile
from aks_flex_node.lean_dataclass import frozen
from aks_flex_node.settings.base import to_document

if TYPE_CHECKING:
    from aks_flex_node.settings.models import NodeConfig


@frozen
class PoolFacts:
    pool: str  # resource ID
    settings: dict[str, Any]  # a configuration document


POOL_FACTS_FILE = RecordFile(POOL_FACTS, PoolFacts)


def config_source(facts: PoolFacts, applied: NodeConfig | None = None) -> SettingsSource:
    """Returns the facts as the weakest configuration source. The settings that the node's Machine can change are
    those that were applied last.
    """
    settings = dict(facts.settings)
    if applied and str(configured_pool(applied) or "").lower() == facts.pool.lower():
        node = applied.node
        kubelet = to_document(node.kubelet, "defaults", reveal=True)
        settings["kubernetes"] = {"version": applied.kubernetes.version}
        settings["node"] = {
            "maxPods": node.max_pods,
            "labels": dict(node.labels),
            "taints": [format_taint(each) for each in node.taints],
            "kubelet": kubelet,
        }
    return from_document(ConfigDocument(settings), f"AKS pool {facts.pool.rpartition('/')[2]}")
