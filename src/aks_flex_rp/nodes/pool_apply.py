"""Brings nodes of a pool to a revision of its template.

Each node is written by itself, in batches that the store commits together, so an interrupted apply can be repeated.
A node whose effective properties would be invalid is named, and keeps what it has.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from aks_flex_rp.arm import errors
from aks_flex_rp.arm.errors import ArmError
from aks_flex_rp.nodes.context import property_changes, retry_on_conflict
from aks_flex_rp.nodes.node_builder import NodeBuilder, validation_context
from aks_flex_rp.nodes.rollout_guard import RolloutGuard, find_bar, revision_barred
from aks_flex_rp.nodes.write_permissions import WriteChecks
from aks_flex_rp.resource import rules
from aks_flex_rp.resource.validation import stay_in_pool
from aks_flex_rp.store.model import AuditAction, NextRevision, RecordRefused, RecordUnverifiable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from aks_flex_rp.nodes.commands import NodeCommands
    from aks_flex_rp.nodes.context import ClusterInfo, NodeContext, RequestContext
    from aks_flex_rp.resource.rules import ValidationContext
    from aks_flex_rp.resource.validation import DesiredNode, PoolTemplate
    from aks_flex_rp.store.model import Node
    from aks_flex_rp.store.pool_model import BarredRevision, Pool, PoolVersions, StoredRollout

AT_ONCE = 200  # nodes per batch; a larger one would delay polls
MAX_KNOWN = 1000  # desired states that are remembered


@dataclass(frozen=True)
class ApplyOptions:
    """How nodes are brought to a revision."""

    allow_downgrade: bool = False
    override: str = ""  # who takes the node out of the roll-out of its pool
    rollout: StoredRollout | None = None  # that has decided it
    state: str = ""  # that the nodes have in the roll-out
    reverses: bool = False  # brings nodes back, also to a revision that is barred

    @property
    def decided(self) -> tuple[int, str] | None:
        return (self.rollout.number, self.state) if self.rollout else None


@dataclass
class ApplyResult:
    revision: int
    applied: list[str] = field(default_factory=list)
    unchanged: list[str] = field(default_factory=list)  # nodes that are on the revision already
    refused: list[tuple[str, ArmError]] = field(default_factory=list)


@dataclass(frozen=True)
class PoolApply:
    commands: NodeCommands

    @property
    def context(self) -> NodeContext:
        return self.commands.context

    async def apply(
        self,
        cluster: ClusterInfo,
        pool: Pool,
        template: PoolTemplate,
        names: Sequence[str] | None,
        request: RequestContext,
        options: ApplyOptions | None = None,
    ) -> ApplyResult:
        """Applies the template to the named nodes, or to all nodes of the pool if `names` is None."""
        options = options or ApplyOptions()
        checks, resource = WriteChecks(self.context), cluster.id.pool(pool.key)
        await checks.check_template(resource, pool.template, template.template, request, AuditAction.POOL_APPLIED)
        bars = await self._check_rollouts(pool, template, names, options)
        result = ApplyResult(template.revision)
        builder = NodeBuilder(self.context, cluster, request.caller)
        step = _NodeApply(self.commands, cluster, template, request, result, options, builder, bars)
        writing: asyncio.Future[list[None]] | None = None
        async for batch in self._batches(cluster, pool, names):
            after = asyncio.gather(*(step.apply(name, node) for name, node in batch))
            if writing:  # the store commits a batch while the next one is prepared
                await writing
            writing = after
        if writing:
            await writing
        if options.rollout:
            return result
        if names is None:
            await self._set_stable(pool, template.revision)
        counts = {"applied": len(result.applied), "refused": len(result.refused)}
        event = request.event(
            self.context.now(),
            AuditAction.POOL_APPLIED,
            resource,
            revision=template.revision,
            **counts,
        )
        await self.context.store.record(event)
        return result

    async def _check_rollouts(
        self, pool: Pool, template: PoolTemplate, names: Sequence[str] | None, options: ApplyOptions
    ) -> tuple[BarredRevision, ...]:
        """Returns the bars that each node is compared with. Raises ArmError if a roll-out forbids to apply."""
        if options.override or options.reverses:
            return ()
        guard = RolloutGuard(self.context.store)
        bars = await guard.bars(pool)
        if bar := find_bar(bars, template.template):
            raise revision_barred(pool.key, bar)
        if options.rollout is None:
            await guard.check_apply(pool, names)
        return bars

    async def _set_stable(self, pool: Pool, revision: int) -> None:
        """New nodes start on the revision that all nodes were given last."""

        async def write(found: PoolVersions | None) -> None:
            if found and found.stable and found.stable != revision:
                await self.context.store.put_pool_versions(replace(found, stable=revision))

        await retry_on_conflict(
            lambda: self.context.store.pool_versions(pool), write, lambda: errors.concurrent_changes(pool.key)
        )

    async def _batches(
        self, cluster: ClusterInfo, pool: Pool, names: Sequence[str] | None
    ) -> AsyncIterator[list[tuple[str, Node | None]]]:
        """Yields the names of nodes, with the nodes if they are read already."""
        if names is not None:
            unique = list({name.lower(): name for name in names}.values())
            for first in range(0, len(unique), AT_ONCE):
                yield [(name, None) for name in unique[first : first + AT_ONCE]]
            return
        after: str | None = ""
        while after is not None:
            page = await self.context.store.pool_nodes(cluster.key, pool.key, after, AT_ONCE)
            yield [(node.name, node) for node in page.nodes]
            after = page.after


@dataclass(frozen=True)
class _NodeApply:
    commands: NodeCommands
    cluster: ClusterInfo
    template: PoolTemplate
    request: RequestContext
    result: ApplyResult
    options: ApplyOptions
    builder: NodeBuilder
    bars: tuple[BarredRevision, ...] = ()
    # Nodes with the same own properties and state have the same desired state, which is validated once.
    known: dict[object, DesiredNode | ArmError] = field(default_factory=dict)

    async def apply(self, name: str, known: Node | None) -> None:
        try:
            changed = await self.commands.context.change_node(
                self.cluster.key, name, lambda node: self._write(name, node), known=known
            )
        except ArmError as error:
            self.result.refused.append((name, error))
        except (RecordRefused, RecordUnverifiable) as error:
            self.result.refused.append((name, ArmError(500, "RecordRefused", error.message)))
        else:
            (self.result.applied if changed else self.result.unchanged).append(name)

    async def _write(self, name: str, before: Node | None) -> bool:
        """Writes a node. Returns False if it is on the revision already."""
        context, pool = self.commands.context, self.template.pool
        if before is None:
            raise errors.node_not_found(self.cluster.id, name)
        if before.pool is None or before.pool.name != pool:
            raise ArmError(409, "NodeNotInPool", f"The node '{name}' is not in the pool '{pool}'.")
        if before.pool.revision == self.template.revision:
            return False
        desired = self._desired(before)
        if bar := find_bar(self.bars, desired.membership.effective if desired.membership else {}):
            raise revision_barred(pool, bar, before.name)
        await WriteChecks(context).check(self.cluster, before.name, desired, before, self.request)
        node = self._node(before, desired)
        event = self.request.event(
            context.now(),
            AuditAction.UPDATE,
            self.cluster.id.node(before.name),
            configVersion=str(node.version),
            poolName=pool,
            poolRevision=self.template.revision,
            **({"rolloutName": self.options.rollout.key} if self.options.rollout else {}),
            changed=property_changes(before.effective, node.effective),
        )
        options, events = self.options, [event]
        if options.override:
            resource = self.cluster.id.node(before.name)
            events.append(self.request.event(context.now(), AuditAction.ROLLOUT_OVERRIDDEN, resource, poolName=pool))
        await context.store.put_node(node, before.etag, events, decided=options.decided, override=options.override)
        if before.join.access and not node.join.access:
            await self.commands.withdraw(self.cluster, before, self.request)
        return True

    def _desired(self, before: Node) -> DesiredNode:
        context = validation_context(
            self.commands.context, self.cluster, before, allow_downgrade=self.options.allow_downgrade
        )
        versions = tuple((context.current_versions or {}).items())
        key = (json.dumps(before.properties), versions, context.stored_secret_client, context.exec_allowed)
        found = self.known.get(key)
        if found is None:
            found = self.known[key] = self._validate(before, context)
            if len(self.known) > MAX_KNOWN:
                self.known.clear()
                self.builder.forget_shared()
        if isinstance(found, ArmError):
            raise found
        return found

    def _validate(self, before: Node, context: ValidationContext) -> DesiredNode | ArmError:
        desired = stay_in_pool(before.properties, self.template)
        problems = rules.check_rules(desired.properties, context)
        return (
            errors.invalid_request(problems)
            if problems
            else replace(desired, allow_downgrade=self.options.allow_downgrade)
        )

    def _node(self, before: Node, desired: DesiredNode) -> Node:
        """Returns the node on the revision. The version stays if the machine has nothing to change."""
        context = self.commands.context
        version = max(int(context.now()), before.version + 1)
        node = self.builder.build(before.name, desired, before, version, before.join)
        if node.config == before.config:
            etag = f'"{before.version}"'  # that of the configuration without a next one
            return replace(before, properties=node.properties, pool=node.pool, system=node.system, etag=etag)
        if not before.join.is_joined and before.join.url_expires is not None and before.join.delivered is None:
            # The machine may already have fetched the configuration of the URL.
            return replace(node, join=node.join.with_delivered(before.version))
        return node


@dataclass(frozen=True)
class PoolStage:
    """Has nodes download what a revision needs, before they are given it. Their configuration does not change."""

    context: NodeContext
    cluster: ClusterInfo
    pool: str
    request: RequestContext
    allow_downgrade: bool = False

    async def stage(self, name: str, template: PoolTemplate) -> bool:
        """Sets what the machine of a node downloads ahead. Returns whether it has to.

        A node for which the revision is not valid is left as it is: the roll-out learns why when it is applied.
        """

        async def write(before: Node | None) -> bool:
            if before is None or before.pool is None or before.pool.name != self.pool:
                return False
            if before.pool.revision == template.revision:
                return False
            following = self._next(before, template)
            known = before.pool.next.revision if before.pool.next else 0
            if known != (following.revision if following else 0):
                await self._put(before, following)
            return following is not None

        return await self.context.change_node(self.cluster.key, name, write)

    async def unstage(self, name: str, revision: int) -> None:
        """Removes what the machine of a node downloads ahead, unless it is for another revision."""

        async def write(before: Node | None) -> None:
            following = before.pool.next if before and before.pool else None
            if before and following and following.revision == revision:
                await self._put(before, None)

        await self.context.change_node(self.cluster.key, name, write)

    async def _put(self, before: Node, following: NextRevision | None) -> None:
        if before.pool is None:
            return
        etag = f'"{before.version}.{following.revision}"' if following else f'"{before.version}"'
        node = replace(before, pool=replace(before.pool, next=following), etag=etag)
        await self.context.store.put_node(node, before.etag)

    def _next(self, before: Node, template: PoolTemplate) -> NextRevision | None:
        context = validation_context(self.context, self.cluster, before, allow_downgrade=True)
        try:
            desired = replace(stay_in_pool(before.properties, template), allow_downgrade=self.allow_downgrade)
        except (ArmError, ValueError):
            return None
        if rules.check_rules(desired.properties, context):
            return None
        builder = NodeBuilder(self.context, self.cluster, self.request.caller)
        node = builder.build(before.name, desired, before, before.version + 1, before.join)
        return NextRevision(template.revision, node.config) if node.config != before.config else None
