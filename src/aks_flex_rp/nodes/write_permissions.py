"""What a write of a node may change: properties that only owners can set, and the identity of the node.

The properties of owners decide what the node trusts. A contributor who could set them would become root on the
machine, or more in the cluster than a node is. A write that leaves them as they are is permitted.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from aks_flex_rp.arm.errors import ArmError
from aks_flex_rp.nodes import join_rules
from aks_flex_rp.nodes.identity_ownership import IdentityOwnership, node_identity
from aks_flex_rp.resource import config_generator
from aks_flex_rp.store.model import AuditAction, AuditOutcome

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from aks_flex_rp.nodes.context import ClusterInfo, NodeContext, RequestContext
    from aks_flex_rp.resource.validation import DesiredNode
    from aks_flex_rp.store.model import Document, Node


def _changed(before: object, after: object) -> bool:
    return before != after


def _set_to_exec(before: object, after: object) -> bool:
    return after == "exec" and before != "exec"


@dataclass(frozen=True)
class OwnerProperty:
    path: str  # below `properties`, with everything in it
    why: str
    needs_owner: Callable[[object, object], bool] = _changed


OWNER_PROPERTIES = (
    OwnerProperty("nodeConfig.artifacts", "It decides from where programs come that run as root on the node."),
    OwnerProperty("nodeConfig.registryMirrors", "It decides from where the node's container images come."),
    OwnerProperty("nodeConfig.kubelet.extraConfig", "The kubelet is root, and they decide what it lets pods do."),
    OwnerProperty("nodeConfig.kubelet.serverURL", "The node does what the API server at this address says."),
    OwnerProperty(
        "kubernetesAuth.method",
        "A node that joins by exec is outside the cluster's restrictions for nodes.",
        _set_to_exec,
    ),
)
EXEC_IDENTITY = OwnerProperty(
    "azureAuth", "The identity of a node that joins by exec can read what the pods of other nodes use."
)


def owner_changes(before: Document, after: Document) -> Iterator[OwnerProperty]:
    """Yields the properties in a write that only an owner can change."""
    for each in OWNER_PROPERTIES:
        if each.needs_owner(_value(before, each.path), _value(after, each.path)):
            yield each


def inherited_changes(before: DesiredNode | None, after: DesiredNode) -> Iterator[OwnerProperty]:
    """Yields the properties of owners that a node would gain, change or lose with its pool.

    A value of the template is an owner's decision. That a template has none is one only for nodes of its pool: a
    contributor who moves a node must not remove what an owner has set.
    """
    membership, own = after.membership, after.document()
    stays = bool(before and before.membership and membership and before.membership.name == membership.name)
    for each in owner_changes(_effective(before) if before else {}, _effective(after)):
        is_inherited = membership is not None and _value(own, each.path) is None
        if not is_inherited or not (stays or _value(_effective(after), each.path) is not None):
            yield each


def _effective(node: DesiredNode) -> Document:
    return node.membership.effective if node.membership else node.document()


def _joins_by_exec(node: DesiredNode) -> bool:
    return node.properties.by_identity == "exec"


def owner_required(changed: OwnerProperty) -> ArmError:
    target = f"properties.{changed.path}"
    message = (
        f"Only owners of the cluster can set {target}. {changed.why} Ask an owner to set it, or send it as it is."
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
        if not request.is_owner:
            await self._check_owner_properties(cluster, name, desired, before, request, new_identity=is_new)
        if identity and is_new:  # a node that already has it keeps it
            ownership = IdentityOwnership(self.context.store)
            await ownership.check_unused(identity, cluster.key, name.lower(), request.may_see)

    async def _check_owner_properties(
        self,
        cluster: ClusterInfo,
        name: str,
        desired: DesiredNode,
        before: Node | None,
        request: RequestContext,
        *,
        new_identity: bool,
    ) -> None:
        stored = join_rules.stored_desired(before) if before else None
        changed = next(owner_changes(stored.document() if stored else {}, desired.document()), None)
        changed = changed or next(inherited_changes(stored, desired), None)
        if changed is None and _joins_by_exec(desired) and (new_identity or not (stored and _joins_by_exec(stored))):
            changed = EXEC_IDENTITY
        if changed is None:
            return
        what = AuditAction.UPDATE if before else AuditAction.CREATE
        event = request.event(self.context.now(), what, cluster.id.node(name), property=changed.path)
        await self.context.store.record(replace(event, outcome=AuditOutcome.DENIED))
        raise owner_required(changed)


def _value(document: Document, path: str) -> Any:
    value: Any = document
    for name in path.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return value or None
