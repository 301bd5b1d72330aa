"""What the provider does with nodes, built in one place: joins, changes, reports, keys and machines that enrol."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from aks_flex_rp.nodes.access_grants import AccessGrants
from aks_flex_rp.nodes.azure_cleanup import AzureCleanup
from aks_flex_rp.nodes.cluster_sync import ClusterSync
from aks_flex_rp.nodes.commands import NodeCommands
from aks_flex_rp.nodes.enroller import Enroller
from aks_flex_rp.nodes.join_tracker import JoinTracker
from aks_flex_rp.nodes.node_key_operations import NodeKeyCommands
from aks_flex_rp.nodes.queries import NodeQueries
from aks_flex_rp.nodes.reports import StatusReports

if TYPE_CHECKING:
    from collections.abc import Callable

    from aks_flex_rp.nodes.azure_cleanup import ArmRemover
    from aks_flex_rp.nodes.context import NodeContext
    from aks_flex_rp.notify.node_events import EventPublisher


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
    publisher: EventPublisher,
    count_join: Callable[[str], None],
    last_seen: Callable[[str, str], float],
    record_seen: Callable[[str, str, float], None],
    open_remover: Callable[[], ArmRemover] | None,
) -> NodeSubsystem:
    """`last_seen` and `record_seen` are the times of polls and reports that are not in the store yet."""
    cleanup = AzureCleanup(context, open_remover)
    tracker = JoinTracker(context, ClusterSync(context).sync, count_join, publisher, last_seen, cleanup)
    claims = tracker.claims
    commands = NodeCommands(context, publisher, last_seen)
    return NodeSubsystem(
        tracker,
        commands,
        NodeQueries(context, last_seen),
        StatusReports(context, AccessGrants(context), record_seen, claims, cleanup, publisher),
        NodeKeyCommands(context, claims),
        Enroller(commands),
    )
