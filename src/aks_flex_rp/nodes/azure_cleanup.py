"""Azure resources of a deleted node: its Arc machine, and the role assignments of the machine's identity.

The agent removes them when it leaves, and reports what it may not remove. The service then removes it with its own
identity, if it has one that may. What is left is recorded in the audit log, with the commands that remove it.
"""

from __future__ import annotations

import asyncio
import shlex
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from aks_flex_node.api.node_changes import value_at
from aks_flex_node.azure import role_assignments, roles
from aks_flex_node.errors import FlexError
from aks_flex_rp.resource.properties import Properties
from aks_flex_rp.store.model import AuditAction, AuditEvent
from aks_flex_rp.time_limit import within

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aks_flex_rp.arm.ids import ClusterId
    from aks_flex_rp.nodes.context import NodeContext
    from aks_flex_rp.store.model import Document

ARC_API_VERSION = "2024-07-10"
CLEANUP_SECONDS = 30.0
CLEANUP_ACTOR = "azure cleanup"  # caller in the audit log


class ArmRemover(Protocol):
    """The part of an ARM client that is used here. It may block."""

    def get(self, path: str, api_version: str) -> dict[str, Any]: ...

    def delete(self, path: str, api_version: str) -> None: ...


@dataclass(frozen=True)
class NodeResources:
    """Azure resources that belong to a node alone."""

    machine: str = ""  # resource ID of the Arc machine
    principal: str = ""  # object ID of its identity, from a token that the service has verified
    assignments: tuple[str, ...] = ()  # of its identity on the cluster; their names are derived from it

    @property
    def ids(self) -> tuple[str, ...]:
        return (*self.assignments, *((self.machine,) if self.machine else ()))


def arc_machine_id(properties: Properties, cluster: ClusterId, node: str) -> str:
    """Returns the resource ID of the Arc machine of a node."""
    group, name = (properties.at(f"azureAuth.arc.{each}") for each in ("resourceGroup", "machineName"))
    return (
        f"/subscriptions/{cluster.subscription}/resourceGroups/{group or cluster.group}"
        f"/providers/Microsoft.HybridCompute/machines/{name or node}"
    )


def node_resources(properties: Document, cluster: ClusterId, node: str, principal: str) -> NodeResources:
    """Returns the resources of a node that uses Azure Arc.

    `principal` is the object ID with which the node has signed in. The one in the properties does not count, because
    a user who writes them could name the identity of another machine.
    """
    read = Properties(properties)
    if read.auth_method != "arc":
        return NodeResources()
    ids = (role_assignments.assignment_id(str(cluster), role, principal) for role in roles.CLUSTER_ROLES)
    return NodeResources(arc_machine_id(read, cluster, node), principal, tuple(ids) if principal else ())


def declared_principal(properties: Document) -> str:
    """Returns the object ID that the properties name, only to be shown to the user who writes them."""
    return value_at(properties, "azureAuth.arc.principalId") or ""


def removal_command(resource: str) -> str:
    """Returns the command that removes a resource."""
    quoted = shlex.quote(resource)
    if is_assignment(resource):
        return f"az role assignment delete --ids {quoted}"
    return f"az resource delete --ids {quoted}"


def is_assignment(resource: str) -> bool:
    return "/roleassignments/" in resource.lower()


@dataclass(frozen=True)
class AzureCleanup:
    context: NodeContext
    open_arm: Callable[[], ArmRemover] | None = None  # None if the service has no Azure identity

    async def after_report(self, cluster: ClusterId, name: str, reported: Sequence[str], principal: str) -> list[str]:
        """Removes what the agent of a deleted node could not remove. Returns the IDs of what was removed.

        A machine can report anything, so only the node's own resources are removed. The Arc machine of a node that
        still exists is kept, because another machine may have its name now.
        """
        resources = node_resources(await self._properties(cluster, name), cluster, name, principal)
        if await self.context.store.node(cluster.key, name.lower()):
            resources = replace(resources, machine="")
        own = {each.lower(): each for each in resources.ids}
        allowed = [own[each.lower()] for each in reported if each.lower() in own]
        others = [each for each in reported if each.lower() not in own]
        return await self._remove(cluster, name, resources, allowed, unverified=others)

    async def after_removal(self, cluster_key: str, name: str) -> None:
        """Removes the role assignments of a deleted node whose machine is gone without a report.

        Its Arc machine may be older than the node, so it is only named.
        """
        known = await self.context.clusters.find(cluster_key)
        if known is None:
            return
        cluster = known.id
        event = await self._deletion(cluster, name)
        if event is None:
            return
        identity = str(event.detail.get("identity") or "")
        resources = node_resources(event.detail.get("before", {}), cluster, name, identity)
        if resources.machine:
            await self._remove(cluster, name, resources, resources.assignments, named=[resources.machine])

    async def _properties(self, cluster: ClusterId, name: str) -> Document:
        """Returns the properties of a node, or those that it had when it was deleted."""
        node = await self.context.store.node(cluster.key, name.lower())
        if node:
            return node.effective
        event = await self._deletion(cluster, name)
        found: Document = event.detail.get("before", {}) if event else {}
        return found

    async def _deletion(self, cluster: ClusterId, name: str) -> AuditEvent | None:
        events = await self.context.store.audit(resource=cluster.node(name), what=AuditAction.DELETE, limit=1)
        return events[0] if events else None

    async def _remove(
        self,
        cluster: ClusterId,
        name: str,
        resources: NodeResources,
        ids: Sequence[str],
        *,
        named: Sequence[str] = (),
        unverified: Sequence[str] = (),
    ) -> list[str]:
        """Removes resources, and records what is left. `named` and `unverified` ones are only recorded."""
        try:
            removed, why = await within(CLEANUP_SECONDS, asyncio.to_thread(self._delete, ids, resources.principal))
        except asyncio.TimeoutError:
            removed, why = [], "Azure did not respond in time."
        commands = [removal_command(each) for each in (*ids, *named) if each not in removed]
        if not resources.principal:
            commands.append(f"az role assignment list --scope {shlex.quote(str(cluster))}")
        detail: dict[str, Any] = {"removed": removed, "remaining": commands}
        if unverified:
            detail["reportedByMachine"] = list(unverified)
        if commands:
            detail["why"] = f"{why} To be removed by an Azure administrator: {'; '.join(commands)}".strip()
        event = AuditEvent(
            self.context.now(), CLEANUP_ACTOR, AuditAction.AZURE_CLEANUP, cluster.node(name), detail=detail
        )
        await self.context.store.record(event)
        return removed

    def _delete(self, ids: Sequence[str], principal: str) -> tuple[list[str], str]:
        """Deletes resources one by one. Returns those that are gone, and why another one is not.

        An Arc machine is deleted only if `principal` is its identity: another machine may have this name.
        """
        removed: list[str] = []
        why = "" if not ids or self.open_arm else "The service has no Azure identity."
        if self.open_arm is None or not ids:
            return removed, why
        try:
            arm = self.open_arm()
        except FlexError as error:
            return removed, error.message
        for each in ids:
            try:
                if is_assignment(each):
                    arm.delete(each, role_assignments.ROLE_API_VERSION)
                elif not _has_identity(arm.get(each, ARC_API_VERSION), principal):
                    why = "The Arc machine has another identity than this node had."
                    continue
                else:
                    arm.delete(each, ARC_API_VERSION)
            except FlexError as error:
                if getattr(error, "status", 0) != 404:
                    why = error.message
                    continue
            removed.append(each)
        return removed, why


def _has_identity(machine: Document, principal: str) -> bool:
    identity = machine.get("identity") or {}
    return bool(principal) and str(identity.get("principalId", "")).lower() == principal.lower()
