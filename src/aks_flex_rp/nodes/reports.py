"""Status reports of nodes (reportStatus), the credentials that a node may fetch (listCredentials), and the access of
its identity to the cluster.
"""

from __future__ import annotations

import logging
import re
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

from aks_flex_node.errors import ClusterError
from aks_flex_node.timestamps import format_utc
from aks_flex_rp.arm import errors
from aks_flex_rp.callers import CallerKind
from aks_flex_rp.join_state import ClusterAccess, JoinPhase
from aks_flex_rp.machine_ownership import CONFLICT_CONDITION
from aks_flex_rp.nodes import join_rules
from aks_flex_rp.resource.models import WireModel
from aks_flex_rp.store.model import AuditAction, Conflict

if TYPE_CHECKING:
    from collections.abc import Callable

    from aks_flex_node.api.machine_identity import MachineIdentity
    from aks_flex_rp.join_state import JoinState
    from aks_flex_rp.nodes.azure_cleanup import AzureCleanup
    from aks_flex_rp.nodes.context import ClusterInfo, NodeContext, RequestContext
    from aks_flex_rp.nodes.machine_claims import MachineClaims
    from aks_flex_rp.store.model import AuditEvent, Node


WORKLOADS = frozenset({CallerKind.APPLICATION, CallerKind.MANAGED_IDENTITY})

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class AccessGrants:
    """Grants the Azure identity of a node its role in the cluster, before the node's request is answered.

    The object ID of a service principal is known only from the node's own token, at its first call. The role is
    granted in the cluster first and recorded with the node afterwards. A grant that was not recorded is withdrawn by
    the cluster's access controller.
    """

    context: NodeContext

    async def ensure_access(
        self, cluster: ClusterInfo, node: Node, request: RequestContext, *, joining: bool = False
    ) -> Node:
        """Ensures the access of the calling node and returns the updated node.

        With `joining` the node is about to join, and the grant is applied in any case. Raises ClusterError if
        the cluster does not respond; nothing is recorded then.
        """
        if join_rules.is_access_obsolete(node) and request.acts_as_node:
            return await self._withdraw(cluster, node, request)
        granted = False

        async def grant(found: Node | None) -> Node:
            nonlocal granted
            if found is None:
                await self.context.clusters.withdraw(cluster.key, node.key)
                raise await self.context.missing_node(cluster, node.name, request)
            access = _desired_access(found, request, joining=joining)
            if access is None:
                if granted and found.join.access is None:  # the node has another identity now, or joins with a token
                    await self.context.clusters.withdraw(cluster.key, node.key)
                return found
            if joining or found.join.access != access:
                await self.context.clusters.grant(cluster.key, node.key, access)
                granted = True
            join = found.join.joining(access) if joining else found.join.with_access(access)
            return found if join == found.join else await self._store_access(cluster, found, join, access, request)

        return await self.context.change_node(node.cluster, node.name, grant, known=node)

    async def _withdraw(self, cluster: ClusterInfo, node: Node, request: RequestContext) -> Node:
        """Removes access that is no longer needed.

        The record is removed first, so that the access controller can finish.
        """
        access = node.join.access
        detail = {"identity": access.identity if access else ""}
        event = request.event(self.context.now(), AuditAction.ACCESS_WITHDRAWN, cluster.id.node(node.name), **detail)
        try:
            after = await self.context.put_join(node, node.join.without_access(), [event])
        except Conflict:
            return node  # checked again at its next call
        await self.context.clusters.withdraw(cluster.key, node.key)
        return await self.context.store.node(node.cluster, node.key) or after

    async def try_ensure_access(self, cluster: ClusterInfo, node: Node, request: RequestContext) -> Node:
        """Ensures the access, but only logs a failure: the request was about something else and must not wait for
        it. Returns the updated node.
        """
        try:
            return await self.ensure_access(cluster, node, request)
        except (ClusterError, errors.ArmError) as error:
            log.warning("%s could not be granted access to its cluster, retrying later: %s", node.name, error)
            return node

    async def _store_access(
        self, cluster: ClusterInfo, node: Node, join: JoinState, access: ClusterAccess, request: RequestContext
    ) -> Node:
        events: list[AuditEvent] = []
        if node.join.access != access:
            detail = {"identity": access.identity, "role": access.role}
            events = [
                request.event(self.context.now(), AuditAction.ACCESS_GRANTED, cluster.id.node(node.name), **detail)
            ]
        noted = await self.context.put_join(node, join, events)
        if node.join.url_expires is not None and join.url_expires is None:
            await self.context.delivery.revoke(node.cluster, node.key)
        return await self.context.store.node(node.cluster, node.key) or noted


def _desired_access(node: Node, request: RequestContext, *, joining: bool) -> ClusterAccess | None:
    """Returns the access that the calling node needs, or None if the caller is not the node itself.

    Users are excluded: a cluster does not know them by their object ID.
    """
    caller, known = request.caller, node.join.access
    if request.key_use and known:
        identity = known.identity  # a node that calls by its key has signed in with its identity before
    elif request.acts_as_node and caller.is_node(node.identity) and caller.kind in WORKLOADS:
        identity = caller.id  # the node may have got another identity since the request was authorized
    else:
        return None
    method = join_rules.next_method(node, identity, joining=joining)
    return ClusterAccess(identity, method) if method else None


MOST_CONDITIONS = 64
MOST_RESOURCES = 32
SERVICE_CONDITIONS = frozenset({CONFLICT_CONDITION})  # set by the service, also for monitored nodes
_MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)", re.IGNORECASE)


REPLACED_WITH_CONDITIONS = frozenset({"stagedPoolRevision", "failedConfigVersion"})
NOT_MERGED = {"conditions", "join_state", "join_failure", "remaining_resources"}


def _timestamp(value: object) -> object:
    """Accepts only timestamps with a time zone. Numbers are ambiguous: seconds or milliseconds."""
    if isinstance(value, str) and _MOMENT.fullmatch(value):
        return value
    raise PydanticCustomError("moment", "should be a time with its zone, such as 2026-02-26T15:30:45Z")


Timestamp = Annotated[datetime, BeforeValidator(_timestamp), Field(strict=False)]
ConfigVersion = Annotated[str, Field(pattern=r"^[0-9]{1,19}$")]
ResourceId = Annotated[str, Field(min_length=1, max_length=1024, pattern=r"^/subscriptions(/[A-Za-z0-9_.()-]+)+$")]
ShortText = Annotated[str, Field(max_length=256)]


class ReportedCondition(WireModel):
    type: Annotated[str, Field(min_length=1, max_length=316)]
    status: Literal["True", "False", "Unknown"]
    last_transition_time: Timestamp | None = None
    reason: Annotated[str, Field(max_length=1024)] | None = None
    message: Annotated[str, Field(max_length=32768)] | None = None


class StatusReport(WireModel):
    conditions: Annotated[list[ReportedCondition], Field(max_length=MOST_CONDITIONS)] | None = None
    last_config_applied: Timestamp | None = None
    applied_config_version: ConfigVersion | None = None
    join_state: Literal["Created", "ConfigFetched", "BootstrapAttempted", "Joined", "Failed"] | None = None
    join_failure: Annotated[str, Field(max_length=32768)] | None = None
    agent_version: ShortText | None = None
    kubelet_version: ShortText | None = None
    drift_count: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = None
    last_drift_detected: Timestamp | None = None
    staged_pool_revision: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = None
    failed_config_version: ConfigVersion | None = None
    remaining_resources: Annotated[list[ResourceId], Field(max_length=MOST_RESOURCES)] | None = None

    @property
    def join_phase(self) -> JoinPhase | None:
        return JoinPhase(self.join_state) if self.join_state else None


def merge_report(
    report: StatusReport, earlier: dict[str, Any], now: float, *, monitored: bool = True
) -> dict[str, Any]:
    """Merges a report into the stored status. Omitted fields are kept, while conditions and the state of updates are
    replaced as a whole.

    For a node that is not `monitored`, the service maintains the Ready condition, and only a newer one replaces it.
    """
    reported = report.model_dump(mode="json", exclude_none=True, exclude=NOT_MERGED)
    if report.conditions is not None:
        before = {each["type"]: each for each in earlier.get("conditions", ())}
        latest = {each.type: _condition(each, before.get(each.type), now) for each in report.conditions}
        own = SERVICE_CONDITIONS if monitored else {*SERVICE_CONDITIONS, "Ready"}
        known = {kind: each for kind, each in before.items() if kind in own}
        reported["conditions"] = [*{**known, **latest}.values()]
        earlier = {key: value for key, value in earlier.items() if key not in REPLACED_WITH_CONDITIONS}
    return {**earlier, **reported}


def _condition(condition: ReportedCondition, before: dict[str, Any] | None, now: float) -> dict[str, Any]:
    shown = condition.model_dump(mode="json", exclude_none=True)
    if "lastTransitionTime" not in shown:
        same = before is not None and before["status"] == condition.status
        shown["lastTransitionTime"] = before["lastTransitionTime"] if before and same else format_utc(now)
    return shown


@dataclass(frozen=True)
class StatusReports:
    context: NodeContext
    access_grants: AccessGrants
    record_seen: Callable[[str, str, float], None]  # records that a node was seen; written in batches
    claims: MachineClaims
    cleanup: AzureCleanup

    async def report(
        self,
        cluster: ClusterInfo,
        name: str,
        document: dict[str, Any],
        request: RequestContext,
        machine: MachineIdentity | None = None,
    ) -> dict[str, Any]:
        """Stores a status report.

        A node that is about to join (ConfigFetched) is granted access before the response.
        """
        report, now = StatusReport.read(document), self.context.now()
        node = await self.context.store.node(cluster.key, name.lower())
        if report.remaining_resources is not None:
            return await self._cleaned_up(cluster, name, report.remaining_resources, request)
        if node is None:
            raise await self.context.missing_node(cluster, name, request)
        if machine and request.acts_as_node:
            node = await self.claims.on_report(node, machine, request)
        if report.join_phase is JoinPhase.CONFIG_FETCHED:
            node = await self.access_grants.ensure_access(cluster, node, request, joining=True)
        else:  # the status of a node is stored whatever its cluster permits
            node = await self.access_grants.try_ensure_access(cluster, node, request)
        node = await self._store_report(cluster, node, report, now, request)
        if report.join_phase is JoinPhase.FAILED:
            await self._failed(node, report.join_failure or "The agent reported no reason.")
        return {"configVersion": str(node.version), "lastSeen": format_utc(now)}

    async def _cleaned_up(
        self, cluster: ClusterInfo, name: str, remaining: list[str], request: RequestContext
    ) -> dict[str, Any]:
        """Handles the last report of a machine that leaves: what its agent could not remove from Azure."""
        known = await self.context.store.last_known_node(cluster.key, name.lower())
        if not known.version or not request.acts_as_node:
            raise await self.context.missing_node(cluster, name, request)
        removed = await self.cleanup.after_report(cluster.id, name, remaining, request.caller.id)
        now = format_utc(self.context.now())
        return {"configVersion": str(known.version), "lastSeen": now, "removedResources": removed}

    async def _store_report(
        self, cluster: ClusterInfo, node: Node, report: StatusReport, now: float, request: RequestContext
    ) -> Node:
        """Stores the report and returns the node from before. The messages are derived from the difference to it."""

        async def write(found: Node | None) -> Node:
            if found is None:
                raise await self.context.missing_node(cluster, node.name, request)
            monitored = found.is_monitored
            status = merge_report(report, found.status, now, monitored=monitored)
            if status == found.status:
                self.record_seen(found.cluster, found.key, now)  # a heartbeat without changes writes no row
                return found
            if not await self.context.put_status(found, status, now):
                raise await self.context.missing_node(cluster, node.name, request)
            return found

        return await self.context.change_node(node.cluster, node.name, write, known=node)

    async def _failed(self, node: Node, why: str) -> None:
        """Records a failed join reported by the node. That it has joined is recorded only from the cluster."""
        if node.join.is_joined or node.join.failure == why:
            return
        with suppress(Conflict):  # the node was replaced meanwhile and starts a new attempt
            await self.context.put_join(node, node.join.failed(why))

    async def credentials(self, cluster: ClusterInfo, name: str, request: RequestContext) -> dict[str, Any]:
        context = self.context
        node = await context.store.node(cluster.key, name.lower())
        if node is None:
            raise await context.missing_node(cluster, name, request)
        method = node.effective.get("azureAuth", {}).get("method", "none")
        answer: dict[str, Any] = {"configVersion": str(node.version), "method": method}
        if method == "servicePrincipal":
            principal = node.config["azure"]["servicePrincipal"]
            secret = context.open_secrets(node).client_secret  # empty if the machine has a certificate instead
            answer["servicePrincipal"] = {
                "clientId": principal["clientId"],
                **({"clientSecret": secret} if secret else {}),
                "clientTenant": principal.get("clientTenant", ""),
            }
        event = request.event(context.now(), AuditAction.LIST_CREDENTIALS, cluster.id.node(node.name), method=method)
        await context.store.record(event)
        return answer
