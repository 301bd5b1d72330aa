"""What the provider does with nodes, built in one place: joins, changes, reports, keys and machines that enrol."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from aks_flex_rp.nodes.azure_cleanup import AzureCleanup
from aks_flex_rp.nodes.cluster_sync import ClusterSync
from aks_flex_rp.nodes.commands import NodeCommands
from aks_flex_rp.nodes.enroller import Enroller
from aks_flex_rp.nodes.join_tracker import JoinTracker
from aks_flex_rp.nodes.node_key_operations import NodeKeyCommands
from aks_flex_rp.nodes.queries import NodeQueries
from aks_flex_rp.nodes.reports import AccessGrants, StatusReports

if TYPE_CHECKING:
    from collections.abc import Callable

    from aks_flex_rp.nodes.azure_cleanup import ArmRemover
    from aks_flex_rp.nodes.context import NodeContext


@dataclass(frozen=True)
class NodeSubsystem:
    join_tracker: JoinTracker
    commands: NodeCommands
    queries: NodeQueries
    reports: StatusReports
    keys: NodeKeyCommands
    enroller: Enroller


def open_nodes(
    context: NodeContext,
    count_join: Callable[[str], None],
    record_seen: Callable[[str, str, float], None],
    open_remover: Callable[[], ArmRemover] | None,
) -> NodeSubsystem:
    """`record_seen` is told of polls and reports that write nothing else to the store."""
    cleanup = AzureCleanup(context, open_remover)
    tracker = JoinTracker(context, ClusterSync(context).sync, count_join, cleanup)
    claims = tracker.claims
    commands = NodeCommands(context)
    return NodeSubsystem(
        tracker,
        commands,
        NodeQueries(context),
        StatusReports(context, AccessGrants(context), record_seen, claims, cleanup),
        NodeKeyCommands(context, claims),
        Enroller(commands),
    )
