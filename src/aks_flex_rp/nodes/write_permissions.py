"""What only owners of a cluster can change: the settings that the table gives to owners, and the identity of a node
that joins by exec.

A contributor who could set them would become root on the machine, or more in the cluster than a node is. Each write
of a node or a pool, and each order that gives nodes another revision, asks `WriteChecks`. A write that leaves them as
they are is permitted.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from aks_flex_node.api.node_changes import value_at
from aks_flex_node.settings.api import ApiSetting, api_settings
from aks_flex_node.settings.setting import CREDENTIALS, OWNER, REACHES
from aks_flex_node.settings.value_checks import same
from aks_flex_rp.arm.errors import ArmError
from aks_flex_rp.nodes import join_rules
from aks_flex_rp.nodes.identity_ownership import IdentityOwnership, node_identity
from aks_flex_rp.resource import config_generator
from aks_flex_rp.store.model import AuditAction

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aks_flex_rp.nodes.context import ClusterInfo, NodeContext, RequestContext
    from aks_flex_rp.resource.validation import DesiredNode
    from aks_flex_rp.store.model import Document, Node

IDENTITY = "azureAuth"


@cache
def owner_settings() -> tuple[ApiSetting, ...]:
    """Returns the settings that only owners can change, or that only they can give a certain value."""
    return tuple(each for each in api_settings().values() if each.setting.who == OWNER or each.setting.owner_value)


def owner_changes(before: Document, after: Document) -> Iterator[str]:
    """Yields the settings in a write that only an owner can change, of a node or of a template."""
    for entry in owner_settings():
        old, new = (_given(document, entry.path) for document in (before, after))
        if not same(old, new) and entry.setting.owner_value in ("", new):
            yield entry.path


def node_changes(before: DesiredNode | None, after: DesiredNode, *, new_identity: bool) -> Iterator[str]:
    """Yields what only an owner can change in a write of a node: its own settings, what it would gain, change or lose
    with its pool, and the identity of a node that joins by exec.

    A value of the template is an owner's decision. That a template has none is one only for nodes of its pool: a
    contributor who moves a node must not remove what an owner has set.
    """
    own = after.document()
    yield from owner_changes(before.document() if before else {}, own)
    pool = after.membership and after.membership.name
    earlier = before and before.membership and before.membership.name
    effective = _effective(after)
    for path in owner_changes(_effective(before) if before else {}, effective):
        is_inherited = pool is not None and _given(own, path) is None
        if not is_inherited or not (pool == earlier or _given(effective, path) is not None):
            yield path
    if _joins_by_exec(after) and (new_identity or not (before and _joins_by_exec(before))):
        yield IDENTITY


def _given(document: Document, path: str) -> object:
    """Returns the value of a setting, or None if there is none. An empty list or map is none."""
    value = value_at(document, path)
    return None if value in ({}, []) else value


def _effective(node: DesiredNode) -> Document:
    return node.membership.effective if node.membership else node.document()


def _joins_by_exec(node: DesiredNode) -> bool:
    return node.properties.by_identity == "exec"


def _owner_required(paths: list[str], above: str) -> ArmError:
    """Returns the error for settings below `above` that only an owner can change."""
    path, *others = dict.fromkeys(paths)
    entry, target = api_settings().get(path), f"{above}.{path}"
    reason = REACHES[entry.setting.reaches if entry else CREDENTIALS]
    which = "" if entry else " of a node that joins by exec"
    also = f" The same applies to {', '.join(f'{above}.{each}' for each in others)}." if others else ""
    message = (
        f"Only owners of the cluster can set {target}{which}, because {reason}.{also} Ask an owner to set it, or "
        "send it as it is."
    )
    return ArmError(403, "AuthorizationFailed", message, target)


@dataclass(frozen=True)
class WriteChecks:
    context: NodeContext

    async def check(
        self, cluster: ClusterInfo, name: str, desired: DesiredNode, before: Node | None, request: RequestContext
    ) -> None:
        """Raises ArmError if the caller may not make these changes, or if another node has the identity."""
        tenant = config_generator.cluster_tenant(cluster.facts, self.context.endpoints_for(cluster))
        identity = node_identity(desired.properties, cluster.id, tenant, name.lower())
        is_new = before is None or before.identity != identity
        stored = join_rules.stored_desired(before) if before else None
        changed = [] if request.is_owner else list(node_changes(stored, desired, new_identity=is_new))
        if changed:
            what = AuditAction.UPDATE if before else AuditAction.CREATE
            await self._record(what, cluster.id.node(name), changed[0], request)
            raise _owner_required(changed, "properties")
        if identity and is_new:  # a node that already has it keeps it
            ownership = IdentityOwnership(self.context.store)
            await ownership.check_unused(identity, cluster.key, name.lower(), request.may_see)

    async def check_template(
        self, resource: str, before: Document, after: Document, request: RequestContext, what: AuditAction
    ) -> None:
        """Raises ArmError if only an owner may give nodes this template. `before` is the newest of the pool."""
        changed = [] if request.is_owner else list(owner_changes(before, after))
        if changed:
            await self._record(what, resource, changed[0], request)
            raise _owner_required(changed, "properties.template")

    async def _record(self, what: AuditAction, resource: str, path: str, request: RequestContext) -> None:
        event = request.event(self.context.now(), what, resource, property=path)
        await self.context.store.record(event.denied())
