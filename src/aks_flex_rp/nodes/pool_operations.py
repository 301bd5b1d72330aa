"""Creates, updates, deletes and reads pools, and the revisions of their templates.

A changed template is a new revision. Nodes stay on the revision that they have until it is applied (`pool_apply`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from aks_flex_rp.arm import errors
from aks_flex_rp.nodes.context import retry_on_conflict
from aks_flex_rp.nodes.node_builder import system_data, validation_context
from aks_flex_rp.nodes.write_permissions import WriteChecks
from aks_flex_rp.resource import validation
from aks_flex_rp.resource.effective import POOL_NAME, changed_values
from aks_flex_rp.resource.validation import PoolTemplate
from aks_flex_rp.store.model import AuditAction, Conflict
from aks_flex_rp.store.pool_model import Pool, PoolRevision

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aks_flex_rp.nodes.context import ClusterInfo, NodeContext, RequestContext
    from aks_flex_rp.nodes.preconditions import Preconditions
    from aks_flex_rp.resource.validation import PoolProperties
    from aks_flex_rp.store.model import AuditEvent, Node


T = TypeVar("T")
KIND = "flexNodePools"
NAMED_NODES = 5  # of a pool that cannot be deleted
ALL_REVISIONS = 2**62


@dataclass(frozen=True)
class PoolCommands:
    context: NodeContext

    async def get(self, cluster: ClusterInfo, name: str) -> Pool:
        """Returns a pool. Raises ArmError if there is none."""
        found = await self.context.store.pool(cluster.key, name)
        if found is None:
            raise errors.pool_not_found(cluster.id, name)
        return found

    async def revision(self, pool: Pool, number: int) -> PoolRevision:
        found = await self.context.store.pool_revision(pool, number)
        if found is None:
            raise errors.revision_not_found(pool.key, number)
        return found

    async def template(self, pool: Pool, number: int) -> PoolTemplate:
        """Returns the template of a revision. Raises ArmError if it does not exist."""
        return PoolTemplate(pool.key, number, (await self.revision(pool, number)).template)

    async def template_for(
        self, cluster: ClusterInfo, body: dict[str, Any], before: Node | None
    ) -> PoolTemplate | None:
        """Returns the template for a write of a node with this body, or None without a pool: that of its revision, or
        of the stable one of its new pool. Raises ArmError if there is none.

        A name of another type is a problem that validation reports.
        """
        properties = body.get("properties")
        name = properties.get(POOL_NAME) if isinstance(properties, dict) else None
        if not isinstance(name, str):
            return None
        pool = await self.context.store.pool(cluster.key, name)
        if pool is None:
            raise pool_missing(name)
        if before and before.pool and before.pool.name == pool.key:
            return await self.template(pool, before.pool.revision)
        # New nodes start on the newest revision, unless roll-outs bring nodes to it.
        return await self.template(pool, (await self.context.store.pool_versions(pool)).stable or pool.number)

    async def put(
        self,
        cluster: ClusterInfo,
        name: str,
        body: dict[str, Any],
        preconditions: Preconditions,
        request: RequestContext,
    ) -> tuple[Pool, bool]:
        """Writes a pool. Returns it, and whether it is new. An unchanged body changes nothing."""

        async def write(before: Pool | None) -> tuple[Pool, bool]:
            after = await self._desired(cluster, name, body, preconditions, before, request)
            if before and (after.template, after.description) == (before.template, before.description):
                return before, False
            return await self._write(cluster, after, before, request), before is None

        written, created = await self._update(cluster, name, write)
        if created and not await self.context.clusters.is_there(cluster.key):
            await self.context.store.delete_pool(written)  # the cluster was removed during the write
            raise errors.cluster_not_found(cluster.id)
        return written, created

    async def preview(
        self,
        cluster: ClusterInfo,
        name: str,
        body: dict[str, Any],
        preconditions: Preconditions,
        request: RequestContext,
    ) -> Pool:
        """Returns the pool that a write with this body would make, after the same checks. Writes no pool."""
        before = await self.context.store.pool(cluster.key, name)
        return await self._desired(cluster, name, body, preconditions, before, request)

    async def delete(
        self, cluster: ClusterInfo, name: str, preconditions: Preconditions, request: RequestContext
    ) -> bool:
        """Deletes a pool with its revisions. Returns False if it does not exist. Raises ArmError if it has nodes."""
        store = self.context.store

        async def delete(before: Pool | None) -> bool:
            preconditions.check(before, name, KIND)
            if before is None:
                return False
            event = request.event(
                self.context.now(), AuditAction.POOL_DELETED, cluster.id.pool(name), before=before.template
            )
            ended = await self._ended_enrolments(cluster, name, request)
            try:
                await store.delete_pool(before, [event, *ended])
            except Conflict:
                if count := (await store.count_pool(before)).nodes:
                    some = await store.pool_nodes(cluster.key, name, limit=NAMED_NODES)
                    raise errors.pool_has_nodes(name, count, [each.name for each in some.nodes]) from None
                raise
            return True

        return await self._update(cluster, name, delete)

    async def _ended_enrolments(self, cluster: ClusterInfo, name: str, request: RequestContext) -> list[AuditEvent]:
        """Returns the events of the enrolments that end with their pool."""
        after, events, now = "", [], self.context.now()
        while found := await self.context.store.enrolments(cluster.key, name, after):
            for each in found:
                if not each.revoked and now < each.expires:
                    resource = f"{cluster.id.pool(name)}/enrolments/{each.key}"
                    events.append(request.event(now, AuditAction.ENROLMENT_REVOKED, resource, uses=each.uses))
            after = found[-1].key
        return events

    async def _update(self, cluster: ClusterInfo, name: str, change: Callable[[Pool | None], Awaitable[T]]) -> T:
        return await retry_on_conflict(
            lambda: self.context.store.pool(cluster.key, name),
            change,
            lambda: errors.concurrent_changes(name, KIND),
        )

    async def _desired(
        self,
        cluster: ClusterInfo,
        name: str,
        body: dict[str, Any],
        preconditions: Preconditions,
        before: Pool | None,
        request: RequestContext,
    ) -> Pool:
        preconditions.check(before, name, KIND)
        desired = self._validate(cluster, name, body, before)
        template = desired.template
        what, earlier = (AuditAction.POOL_UPDATED, before.template) if before else (AuditAction.POOL_CREATED, {})
        await WriteChecks(self.context).check_template(cluster.id.pool(name), earlier, template, request, what)
        now = self.context.now()
        number = before.number + (before.template != template) if before else 1
        system = system_data(before.system if before else None, request.caller, now)
        created = before.created if before else now
        return Pool(cluster.key, name, template, number, desired.description, system, created)

    def _validate(self, cluster: ClusterInfo, name: str, body: dict[str, Any], before: Pool | None) -> PoolProperties:
        context = validation_context(self.context, cluster, None, allow_downgrade=True)
        has_exec = before is not None and before.template.get("kubernetesAuth", {}).get("method") == "exec"
        desired = validation.validate_pool(
            body, name, replace(context, exec_allowed=context.exec_allowed or has_exec)
        )
        if isinstance(desired, list):
            raise errors.invalid_request(desired)
        return desired

    async def _write(self, cluster: ClusterInfo, after: Pool, before: Pool | None, request: RequestContext) -> Pool:
        now, earlier = self.context.now(), before.template if before else {}
        changes = changed_values(earlier, after.template)
        event = request.event(
            now,
            AuditAction.POOL_UPDATED if before else AuditAction.POOL_CREATED,
            cluster.id.pool(after.key),
            revision=after.number,
            changed=changes,
        )
        revision = None
        if before is None or before.number != after.number:
            who = request.caller
            names = (after.cluster, after.key, after.number, after.created)
            revision = PoolRevision(*names, after.template, changes, who.name, who.id, now)
        return await self.context.store.put_pool(after, before.version if before else None, revision, [event])


def pool_missing(name: str) -> errors.ArmError:
    return errors.invalid(
        f"properties.{POOL_NAME}",
        f"The cluster has no pool '{name[:80]}'. Correct the name, or create it with `aks-flex-rp pool create`.",
    )
