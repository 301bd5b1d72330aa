"""Builds the record of a node from its desired state, its cluster and its earlier record. No I/O."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from aks_flex_node.timestamps import format_utc_microseconds
from aks_flex_rp.callers import CallerKind
from aks_flex_rp.join_state import AccessMethod, JoinPhase
from aks_flex_rp.nodes import join_rules
from aks_flex_rp.nodes.identity_ownership import node_identity
from aks_flex_rp.resource import config_generator
from aks_flex_rp.resource.rules import ValidationContext
from aks_flex_rp.store.model import Node

if TYPE_CHECKING:
    from aks_flex_rp.callers import Caller
    from aks_flex_rp.join_state import JoinState
    from aks_flex_rp.nodes.context import ClusterInfo, NodeContext
    from aks_flex_rp.resource.validation import DesiredNode
    from aks_flex_rp.store.model import Document


def validation_context(
    context: NodeContext, cluster: ClusterInfo, node: Node | None, *, allow_downgrade: bool
) -> ValidationContext:
    """Returns what the desired state of a node is validated against; for a new node or a pool, `node` is None."""
    return ValidationContext(
        cluster.facts.version,
        cluster.facts.aad,
        reserved_ranges=cluster.facts.taken,
        current_versions=current_versions(node) if node else None,
        stored_secret_client=_client(node),
        allow_downgrade=allow_downgrade,
        exec_allowed=context.allow_exec or (node is not None and joins_by_exec(node)),
        tenant_known=bool(config_generator.cluster_tenant(cluster.facts, context.endpoints_for(cluster))),
    )


@dataclass(frozen=True)
class NodeBuilder:
    context: NodeContext
    cluster: ClusterInfo
    caller: Caller
    # Configurations by what they are generated from, besides the name of the node. Nodes of a pool share them.
    configs: dict[object, tuple[DesiredNode, Document]] = field(default_factory=dict)
    versions: dict[object, tuple[DesiredNode, dict[str, str]]] = field(default_factory=dict)  # likewise

    def forget_shared(self) -> None:
        self.configs.clear()
        self.versions.clear()

    def build(self, name: str, desired: DesiredNode, before: Node | None, version: int, join: JoinState) -> Node:
        """Returns the node with its generated configuration, and with what is remembered of the earlier one."""
        node = self._node(name, desired, before, version, join)
        node = join_rules.record_former_taints(node, before)
        node = join_rules.keep_access(node, before)
        return join_rules.record_delivered(node, before)

    def _node(self, name: str, desired: DesiredNode, before: Node | None, version: int, join: JoinState) -> Node:
        context, cluster, key, properties = self.context, self.cluster, name.lower(), desired.properties
        chosen = self._chosen_versions(desired, before)
        endpoints = context.endpoints_for(cluster)
        config = self._config(
            key, desired, chosen, downgrade=desired.allow_downgrade or _has_pending_downgrade(before)
        )
        now = context.now()
        tenant = config_generator.cluster_tenant(cluster.facts, endpoints)
        return Node(
            cluster=cluster.key,
            key=key,
            name=name,
            version=version,
            etag=f'"{version}"',
            properties=desired.document(),
            config=config,
            secrets=self._secrets(key, desired, before),
            system=system_data(before.system if before else None, self.caller, now),
            join=join,
            status=before.status if before else {},  # only shown: reports are written separately
            last_seen=before.last_seen if before else 0.0,
            identity=node_identity(properties, cluster.id, tenant, key),
            created=before.created if before else now,
            revision=before.revision if before else 0,
            pool=desired.membership,
        )

    def _chosen_versions(self, desired: DesiredNode, before: Node | None) -> dict[str, str]:
        cluster = self.cluster
        kept, earlier = "", {}
        if before and not _has_no_machine(before):
            kept = "" if cluster.follow_version else before.config["kubernetes"]["version"]
            earlier = {} if desired.allow_downgrade else current_versions(before)
        shared = (id(desired), kept, tuple(earlier.items()))
        if shared not in self.versions:
            chosen = config_generator.effective_versions(desired.properties, kept or cluster.facts.version, earlier)
            self.versions[shared] = desired, chosen
        return self.versions[shared][1]

    def _config(self, key: str, desired: DesiredNode, chosen: dict[str, str], *, downgrade: bool) -> Document:
        shared = (id(desired), tuple(chosen.items()), downgrade)  # unique while the entry keeps the object
        if found := self.configs.get(shared):
            return config_generator.for_other_node(found[1], desired.properties, key)
        cluster, endpoints = self.cluster, self.context.endpoints_for(self.cluster)
        config = config_generator.generate_config(
            desired.properties, cluster.id, cluster.facts, key, chosen, endpoints=endpoints, downgrade=downgrade
        )
        self.configs[shared] = desired, config
        return config

    def _secrets(self, key: str, desired: DesiredNode, before: Node | None) -> bytes:
        if desired.secret is not None:
            return self.context.seal_secret(self.cluster.key, key, desired.secret)
        principal = desired.properties.at("azureAuth.servicePrincipal")
        return before.secrets if before and principal and not principal.get("certificateOnMachine") else b""


def joins_by_exec(node: Node) -> bool:
    return join_rules.identity_method(node) is AccessMethod.EXEC


def _has_no_machine(node: Node) -> bool:
    """Returns whether no machine has had a configuration of the node, so that none has its versions."""
    return node.join.phase is JoinPhase.CREATED and node.join.delivered is None and not node.status


def current_versions(node: Node) -> dict[str, str]:
    """Returns the versions of the node, as far as known.

    After a rollback, only the reported kubelet version is known.
    """
    desired = config_generator.config_versions(node.config)
    conditions = {each["type"]: each["status"] for each in node.status.get("conditions", ())}
    if conditions.get("UpgradeFailed") != "True":
        return desired
    kubelet = str(node.status.get("kubeletVersion", "")).removeprefix("v")
    return {"kubernetes": kubelet} if kubelet else {}


def _has_pending_downgrade(node: Node | None) -> bool:
    """Returns whether an allowed downgrade is not applied yet. Another write in between must not revoke it."""
    if node is None or not config_generator.allows_downgrade(node.config):
        return False
    return str(node.status.get("appliedConfigVersion", "")) != str(node.version)


def _client(node: Node | None) -> str:
    """Returns the client ID of the stored secret."""
    if node is None or not node.secrets:
        return ""
    return str(node.effective["azureAuth"]["servicePrincipal"]["clientId"]).lower()


def system_data(before: Document | None, caller: Caller, now: float) -> dict[str, Any]:
    """Returns the systemData of a resource that this caller writes. `before` is that of the earlier record."""
    by_key = caller.kind in {CallerKind.KEY, CallerKind.NODE_KEY}
    kind = (CallerKind.APPLICATION if by_key else caller.kind).value
    at = format_utc_microseconds(now)
    made = {"createdBy": caller.name, "createdByType": kind, "createdAt": at}
    first = made if before is None else {key: value for key, value in before.items() if key.startswith("created")}
    return {**first, "lastModifiedBy": caller.name, "lastModifiedByType": kind, "lastModifiedAt": at}
