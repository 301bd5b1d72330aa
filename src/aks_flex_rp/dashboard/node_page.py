"""Node page: state, conditions, desired and applied configuration, details and events."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aks_flex_node.api.node_summary import is_paused
from aks_flex_rp.arm.errors import ArmError, json_path
from aks_flex_rp.auth.roles import Operation
from aks_flex_rp.dashboard import condition_text, document_diff, node_history, rollout_view
from aks_flex_rp.dashboard.fleet_page import STATE_LABELS
from aks_flex_rp.dashboard.join_page import join_remedy, join_steps
from aks_flex_rp.dashboard.page import DashboardPage
from aks_flex_rp.dashboard.scopes import ShownCluster
from aks_flex_rp.resource import config_generator
from aks_flex_rp.resource.effective import leaves
from aks_flex_rp.resource.versions import TITLES
from aks_flex_rp.store.model import AuditAction, AuditOutcome

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.responses import Response

    from aks_flex_rp.dashboard.document_diff import DiffLine
    from aks_flex_rp.dashboard.page_request import PageRequest
    from aks_flex_rp.store.model import AuditEvent, Node

Document = dict[str, Any]
MAX_EVENTS_SEARCHED = 200  # events searched to reconstruct the applied configuration
CHECKED_OPERATIONS = (
    Operation.WRITE,
    Operation.DELETE,
    Operation.REGENERATE_TOKEN,
    Operation.REVOKE_KEY,
    Operation.RELEASE,
    Operation.AUDIT,
)
COMPONENTS = {**TITLES, "agent": "Agent"}
METHODS = {
    "none": "none",
    "servicePrincipal": "service principal",
    "managedIdentity": "managed identity of the VM",
    "arc": "identity of the Arc machine",
}
MACHINE_LABELS = {
    "hostName": "Host name",
    "address": "Address",
    "os": "Operating system",
    "id": "Machine ID",
}
JOIN_METHODS = {
    "bootstrapToken": "bootstrap token",
    "exec": "Azure identity for every request",
    "certificate": "Azure identity, then certificate",
}


@dataclass(frozen=True)
class ComponentRow:
    """One row of the component versions."""

    label: str
    desired: str
    chosen: bool  # a user has set this version
    running: str  # empty when unknown
    of_pool: bool = False  # the pool of the node has set it

    @property
    def differs(self) -> bool:
        return bool(self.running) and self.running != self.desired


@dataclass(frozen=True)
class EffectiveRow:
    """An effective value of a node, and where it comes from."""

    name: str
    value: str
    origin: str


@dataclass(frozen=True)
class IdentityRow:
    """The Azure identity of a node."""

    description: str
    id: str = ""
    credential: str = ""


@dataclass(frozen=True)
class ConfigComparison:
    """Desired and applied configuration of a node."""

    desired: str
    applied: str  # the version; empty when not reported
    at: float
    lines: tuple[DiffLine, ...] | None  # None when the audit log does not reach back to the applied version
    renewed: bool

    @property
    def is_same(self) -> bool:
        return self.desired == self.applied


class NodeDetailPage(DashboardPage):
    """Serves the page of a node."""

    async def show(self, visit: PageRequest) -> Response:
        where, known, _ = await self.scopes.node(visit, Operation.READ)
        may = {each for each in CHECKED_OPERATIONS if await self.scopes.may(visit, each, known.id)}
        events = await self._events(known.id.node(where.node), node_history.MAX_EVENTS) if "audit" in may else ()
        try:
            node, shown = await self.arm.nodes.queries.get(known, where.node)
        except ArmError as error:
            if error.status != 404 or not any(map(_is_deletion, events)):
                raise
            deletion = next(filter(_is_deletion, events))
            return self.pages.show(  # for users who deleted it or had its page open
                "node",
                visit,
                node=None,
                called=where.node,
                id=known.id.node(where.node),
                cluster=known.id,
                deletion=deletion,
                leaves=unbootstraps_on_delete(deletion.detail.get("before", {})),
                history=node_history.node_history(events),
                may=may,
            )
        status = shown["properties"]["status"]
        compared = await self._comparison(node, status, shown["id"], events if "audit" in may else None)
        steps = join_steps(node, status, events)
        return self.pages.show(
            "node",
            visit,
            called=node.name,
            cluster=known.id,
            here_is=ShownCluster(known.id).node(node.name),
            pool_page=ShownCluster(known.id).pool(node.pool.name) if node.pool else "",
            summary=condition_text.summarize(status, join_remedy(steps)),
            steps=steps,
            comparison=compared,
            history=node_history.node_history(events, status),
            may=may,
            labels=STATE_LABELS,
            place=await rollout_view.place_of(self.store, node),
            **facts(node, shown),
        )

    async def _comparison(
        self, node: Node, status: Document, resource: str, events: Sequence[AuditEvent] | None
    ) -> ConfigComparison:
        """Compares the desired with the applied configuration. `events` is None without permission to read them."""
        has = str(status.get("appliedConfigVersion", ""))
        at = condition_text.parse_time(status.get("lastConfigApplied", ""))
        found = document_diff.applied_properties(node.effective, node.version, has, events or ()) if has else None
        if has and events and found is None:
            further = await self._events(resource, MAX_EVENTS_SEARCHED)
            found = document_diff.applied_properties(node.effective, node.version, has, further)
        lines = tuple(document_diff.setting_lines(found.properties, node.effective)) if found else None
        return ConfigComparison(str(node.version), has, at, lines, bool(found and found.renewed))

    async def _events(self, resource: str, most: int) -> tuple[AuditEvent, ...]:
        return await self.store.audit(resource=resource, limit=most)


def facts(node: Node, shown: Document) -> Document:
    """Returns the template variables of the node's details."""
    properties, status = shown["properties"], shown["properties"]["status"]
    conditions = [condition_text.explain_condition(each) for each in status["conditions"]]
    return {
        "node": node,
        "id": shown["id"],
        "node_status": status,
        "conditions": conditions,
        "attention": condition_text.problems_shown(conditions),
        "certificate": next((each for each in conditions if each.type == "CertificateExpiring"), None),
        "components": components(node, status),
        "identity": identity(node.effective.get("azureAuth", {})),
        "join_method": JOIN_METHODS[node.config.get("node", {}).get("kubelet", {}).get("auth") or "bootstrapToken"],
        "config": node.config,
        "system": system(node.system),
        "machine": machine_rows(status),
        "paused": is_paused(node.effective),
        "pool": node.pool,
        "values": effective_rows(properties) if node.pool else (),
        "last_seen": condition_text.parse_time(properties.get("lastSeen", "")),
        "last_drift": condition_text.parse_time(status.get("lastDriftDetected", "")),
    }


def effective_rows(properties: Document) -> list[EffectiveRow]:
    """Returns the effective values of a node of a pool with their origins."""
    origins = properties["origins"]
    return [
        EffectiveRow(json_path(*path), document_diff.text_of(value), origins[json_path(*path)])
        for path, value in leaves(properties["effective"])
    ]


def machine_rows(status: Document) -> dict[str, str]:
    """Returns what the service knows of the machine, by label."""
    machine, key = status.get("machine") or {}, status.get("nodeKey")
    rows = {label: str(machine[name]) for name, label in MACHINE_LABELS.items() if machine.get(name)}
    revoked = " (revoked)" if key and key["state"] == "Revoked" else ""
    return {**rows, "Key fingerprint": f"{key['fingerprint']}{revoked}"} if key else rows


def unbootstraps_on_delete(properties: Document) -> bool:
    """Whether the daemon unbootstraps the machine when the node is deleted."""
    setting = properties.get("nodeConfig", {}).get("unbootstrapOnDelete", True)
    return bool(properties.get("continuousMonitoring")) and setting is not False


def components(node: Node, status: Document) -> list[ComponentRow]:
    """Returns desired and running versions.

    Nodes report only the kubelet and agent version. The other components are known while the desired configuration is
    applied.
    """
    desired, chosen = config_generator.config_versions(node.config), node.effective.get("versions", {})
    own = node.properties.get("versions", {})
    same = str(status.get("appliedConfigVersion", "")) == str(node.version)
    running = {name: version for name, version in desired.items() if same}
    running |= {"kubernetes": status.get("kubeletVersion", ""), "agent": status.get("agentVersion", "")}
    return [
        ComponentRow(
            label,
            desired.get(name, ""),
            name in chosen,
            str(running.get(name, "")).removeprefix("v"),
            of_pool=name in chosen and name not in own,
        )
        for name, label in COMPONENTS.items()
    ]


def identity(auth: Document) -> IdentityRow:
    """Returns the identity that the agent signs in to Azure with."""
    method = str(auth.get("method", "none"))
    settings = auth.get(method) or {}
    known = next(
        (str(settings[name]) for name in ("clientId", "principalId", "machineName") if settings.get(name)), ""
    )
    credential = ""
    if method == "servicePrincipal":
        credential = (
            "with a certificate on the machine" if settings.get("certificateOnMachine") else "with a client secret"
        )
    return IdentityRow(METHODS.get(method, method), known, credential)


def system(status: Document) -> Document:
    """Returns the system data with timestamps as numbers."""
    times = ("createdAt", "lastModifiedAt")
    return {**status, **{name: condition_text.parse_time(status.get(name, "")) for name in times}}


def _is_deletion(event: AuditEvent) -> bool:
    return event.what is AuditAction.DELETE and event.outcome is AuditOutcome.OK
