"""Creates, updates and deletes nodes, and regenerates their tokens.

The order of steps makes each of them safe to interrupt: create the token (an unreferenced one is swept), write the
node with the ID of the valid token, deliver the bundle, which ends the earlier URL, then revoke the earlier token.
A caller that got no response can send the request again.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from msgspec import structs

from aks_flex_node.timestamps import format_utc
from aks_flex_rp.arm import errors
from aks_flex_rp.join_state import JoinState
from aks_flex_rp.node_keys import KeyUse
from aks_flex_rp.nodes import join_rules
from aks_flex_rp.nodes.azure_cleanup import declared_principal, node_resources, removal_command
from aks_flex_rp.nodes.context import property_changes
from aks_flex_rp.nodes.machine_claims import MachineClaims, not_released, revoked_at_fetch
from aks_flex_rp.nodes.node_builder import NodeBuilder, validation_context
from aks_flex_rp.nodes.pool_operations import PoolCommands, pool_missing
from aks_flex_rp.nodes.preconditions import Preconditions
from aks_flex_rp.nodes.rollout_guard import RolloutGuard
from aks_flex_rp.nodes.write_permissions import WriteChecks
from aks_flex_rp.notify.node_events import NodeEvent
from aks_flex_rp.notify.notification_settings import NodeEventKind
from aks_flex_rp.resource import config_generator, validation
from aks_flex_rp.store.model import AuditAction, Conflict

if TYPE_CHECKING:
    from aks_flex_node.api.machine_identity import MachineIdentity
    from aks_flex_rp.machine_ownership import KnownMachine
    from aks_flex_rp.nodes.context import ClusterInfo, NodeContext, RequestContext
    from aks_flex_rp.resource.validation import DesiredNode
    from aks_flex_rp.store.model import Node

AZURE_NOTE = (
    "The agent removes these resources when it leaves. The service removes what the agent may not, if its identity "
    "may. The audit log (azure.cleanup) names what remains, with the commands that remove it."
)
DELETE_NOTE = "ARM resource deleted. Node machine lifecycle (stop/start/destroy) must be managed separately."


@dataclass(frozen=True)
class ConfigUrl:
    """Config URL of a node and its expiry."""

    url: str
    expires: float

    def document(self) -> dict[str, str]:
        return {"configUrl": self.url, "configUrlExpires": format_utc(self.expires)}


@dataclass(frozen=True)
class EnrollingClient:
    """The machine that an enrolment makes a node: its key is bound in the write of the node."""

    thumbprint: str
    machine: MachineIdentity | None
    # The generation of the keys when the node was released; None if this is the node's key.
    replaces: str | None = None

    def check(self, node: Node) -> None:
        """Raises ArmError unless the machine may be the node. What the enrolment has decided may have changed since:
        the key was revoked, or the node was given to another machine.
        """
        keys = node.join.keys
        use = keys.use_of(self.thumbprint)
        if use in {KeyUse.REVOKED, KeyUse.FORMER}:
            raise revoked_at_fetch(node.name)
        if use is KeyUse.UNKNOWN and (self.replaces is None or keys.generation != self.replaces):
            raise not_released(node.name)

    def bind(self, join: JoinState, now: float) -> JoinState:
        machines = join.machines.fetched(self.thumbprint, self.machine, now)
        keys = structs.replace(join.keys.bound(self.thumbprint, now), enrolled=True)
        if self.replaces is not None:  # the release was the consent of an operator: the earlier key ends here
            keys = keys.used(self.thumbprint, now)
        return join.with_machines(machines).with_keys(keys).config_fetched()


@dataclass(frozen=True)
class WriteOptions:
    url: bool  # whether to create a config URL
    what: AuditAction | None = None  # audit action; create or update if None
    newest: int = 0  # the highest version of a deleted node with this name
    replacing: bool = False  # the config URL may be used to move the node to another machine
    enrolling: EnrollingClient | None = None  # gets the bundle instead of a config URL
    override: str = ""  # who takes the node out of the roll-out of its pool


@dataclass(frozen=True)
class WriteResult:
    node: Node
    created: bool
    url: ConfigUrl | None
    machine: KnownMachine | None = None  # the only machine that may use the URL
    bundle: bytes = b""  # of a machine that enrols


@dataclass(frozen=True)
class NodeCommands:
    context: NodeContext

    @property
    def claims(self) -> MachineClaims:
        return MachineClaims(self.context)

    async def put(
        self,
        cluster: ClusterInfo,
        name: str,
        body: dict[str, Any],
        preconditions: Preconditions,
        request: RequestContext,
        *,
        url: bool,
        enrolling: EnrollingClient | None = None,
    ) -> WriteResult:
        conflict = False

        async def write(node: Node | None) -> WriteResult:
            nonlocal conflict
            desired = await self._desired(cluster, name, body, node, preconditions, request)
            # The version of a deleted node is rarely that of the current second. The store rejects such a conflict,
            # and a token would have been created for nothing.
            newest = 0
            if node is None and (url or conflict):
                newest = (await self.context.store.last_known_node(cluster.key, name.lower())).version
            conflict = True
            override = request.caller.name if preconditions.override_rollout else ""
            options = WriteOptions(url=url, newest=newest, enrolling=enrolling, override=override)
            return await self._write(cluster, name, desired, node, request, options=options)

        written = await self.context.change_node(cluster.key, name, write)
        if written.created and not await self.context.clusters.is_there(cluster.key):
            await self.delete(cluster, name, Preconditions(), request)  # the cluster was removed during the write
            raise errors.cluster_not_found(cluster.id)
        if (
            written.created
            and (pool := written.node.pool)
            and not await self.context.store.pool(cluster.key, pool.name)
        ):
            await self.delete(cluster, name, Preconditions(), request)  # the pool was deleted during the write
            raise pool_missing(pool.name)
        return written

    async def preview(
        self,
        cluster: ClusterInfo,
        name: str,
        body: dict[str, Any],
        preconditions: Preconditions,
        request: RequestContext,
    ) -> DesiredNode:
        """Returns what a write with this body would make of the node, after the same checks. Writes no node."""
        before = await self.context.store.node(cluster.key, name.lower())
        return await self._desired(cluster, name, body, before, preconditions, request)

    async def regenerate(
        self,
        cluster: ClusterInfo,
        name: str,
        request: RequestContext,
        *,
        replacing: bool = False,
        machine: MachineIdentity | None = None,
        enrolling: EnrollingClient | None = None,
    ) -> WriteResult:
        """Writes a new version with a new token and URL. The earlier ones become invalid.

        The URL of a node that lives on a machine works only there, unless the machine is to be replaced. `machine` is
        the machine of the caller if the node itself asks. A machine that enrols gets the bundle instead of a URL.
        """

        async def write(node: Node | None) -> WriteResult:
            if node is None:
                raise await self.context.missing_node(cluster, name, request)
            if machine and request.acts_as_node:
                node = await self.claims.on_report(node, machine, request)
            if enrolling:
                enrolling.check(node)
            else:
                request.check_key(node)
            desired = join_rules.stored_desired(node, config_generator.allows_downgrade(node.config))
            what = AuditAction.REGENERATE_TOKEN
            options = WriteOptions(url=True, what=what, replacing=replacing, enrolling=enrolling)
            return await self._write(cluster, node.name, desired, node, request, options=options)

        return await self.context.change_node(cluster.key, name, write)

    async def delete(
        self, cluster: ClusterInfo, name: str, preconditions: Preconditions, request: RequestContext
    ) -> dict[str, Any] | None:
        """Deletes a node. Returns what was removed, or None if the node does not exist."""
        context, key = self.context, name.lower()

        async def delete(node: Node | None) -> Node | None:
            preconditions.check(node, name)
            # Revoke the URL first: after the node is deleted, it could not be found any more.
            await context.delivery.revoke(cluster.key, key)
            if node is None:
                return None
            identity = {"identity": node.join.access.identity} if node.join.access else {}
            event = request.event(
                context.now(), AuditAction.DELETE, cluster.id.node(node.name), before=node.effective, **identity
            )
            notice = NodeEvent(NodeEventKind.DELETED, {"by": request.caller.name})
            messages = context.messages_for(node, [notice])
            gone = await context.store.delete_node(cluster.key, key, node.etag, [event], messages)
            return node if gone else None

        node = await self.context.change_node(cluster.key, name, delete)
        if node is None:
            return None
        access = node.join.access
        resources = node_resources(
            node.effective, cluster.id, node.key, access.identity if access else declared_principal(node.effective)
        )
        left = [{"id": each, "command": removal_command(each)} for each in resources.ids]
        azure = {"azureResources": left, "azureNote": AZURE_NOTE} if left else {}
        cleanup = await self._clean_up(cluster, node, request)
        return {"status": "Deleted", "cleanup": cleanup, "note": DELETE_NOTE, **azure}

    async def _clean_up(self, cluster: ClusterInfo, node: Node, request: RequestContext) -> dict[str, bool]:
        """Removes the access and token of a deleted node from the cluster."""
        token = node.join.token
        revoked = await self.context.clusters.revoke(cluster.key, token) if token else True
        cleanup = {"configUrlRevoked": True, "bootstrapTokenRevoked": revoked, "monitoringDisabled": True}
        # Also if none is recorded: it may just have been granted, and not be recorded yet.
        if join_rules.identity_method(node):
            keeps = join_rules.needs_access_to_leave(node)
            withdrawn = not keeps and await self.withdraw(cluster, node, request)
            cleanup |= {"clusterAccessRevoked": withdrawn} if node.join.access else {}
        return cleanup

    async def withdraw(self, cluster: ClusterInfo, node: Node, request: RequestContext) -> bool:
        """Withdraws the access of a node. If that fails, the access controller retries."""
        done = await self.context.clusters.withdraw(cluster.key, node.key)
        if done and (access := node.join.access):
            detail = {"identity": access.identity}
            event = request.event(
                self.context.now(), AuditAction.ACCESS_WITHDRAWN, cluster.id.node(node.name), **detail
            )
            await self.context.store.record(event)
        return done

    async def _desired(
        self,
        cluster: ClusterInfo,
        name: str,
        body: dict[str, Any],
        node: Node | None,
        preconditions: Preconditions,
        request: RequestContext,
    ) -> DesiredNode:
        preconditions.check(node, name)
        template = await PoolCommands(self.context).template_for(cluster, body, node)
        context = validation_context(self.context, cluster, node, allow_downgrade=preconditions.allow_downgrade)
        desired = validation.validate_body(body, name, context, template)
        if isinstance(desired, list):
            raise errors.invalid_request(desired)
        await WriteChecks(self.context).check(cluster, name, desired, node, request)
        if not preconditions.override_rollout:
            await RolloutGuard(self.context.store).check_node(cluster.key, name, desired, node)
        return desired

    async def _write(
        self,
        cluster: ClusterInfo,
        name: str,
        desired: DesiredNode,
        before: Node | None,
        request: RequestContext,
        *,
        options: WriteOptions,
    ) -> WriteResult:
        """Writes a node. Raises Conflict if another request was faster; nothing is left of this attempt then."""
        context, key, url = self.context, name.lower(), options.url
        now = context.now()
        version = max(int(now), (before.version if before else options.newest) + 1)
        expires = now + context.token_seconds
        if url and before and before.secrets and desired.secret is None and not request.may_see_secrets:
            message = (
                f"The config URL would give '{request.caller.name}' the service principal's secret, which another "
                "user has written and which only owners may see. Send the secret in the body of a PUT, or ask an "
                "owner."
            )
            raise errors.ArmError(403, "AuthorizationFailed", message)
        if not url and before and before.join.url_expires:
            await context.delivery.revoke(cluster.key, key)  # before the record of the URL is removed
        token = None
        if url and not desired.properties.by_identity:
            token = await context.clusters.mint(cluster.key, key, expires)
        join = _next_join(before, options, now, expires, token.id if token else None)
        node = NodeBuilder(context, cluster, request.caller).build(name, desired, before, version, join)
        document = cluster.id.node(name)
        detail: dict[str, object] = {"configVersion": str(version), "urlIssued": url and not options.enrolling}
        detail |= {"tokenId": token.id if token else "", **({"replaceMachine": True} if options.replacing else {})}
        changes = property_changes(before.effective if before else {}, node.effective)
        event = request.event(
            now,
            options.what or (AuditAction.UPDATE if before else AuditAction.CREATE),
            document,
            **detail,
            changed=changes,
            secretWritten=desired.secret is not None,
        )
        try:
            overridden = request.event(now, AuditAction.ROLLOUT_OVERRIDDEN, document) if options.override else None
            events = [event, overridden] if overridden else [event]
            await context.store.put_node(
                node, before.etag if before else None, events, retire=True, override=options.override
            )
        except Conflict:
            if token:
                await context.clusters.revoke(cluster.key, token.id)
            raise
        bundle = self._bundle(node, token.reveal() if token else "") if url else b""
        delivered = None
        if options.enrolling and before:
            await context.delivery.revoke(cluster.key, key)  # an earlier URL
        elif url and not options.enrolling:
            delivered = ConfigUrl(await context.delivery.put(cluster.key, key, bundle, expires), expires)
        if before and (old := before.join.token):
            await context.clusters.revoke(cluster.key, old)
        if before and before.join.access and not node.join.access:
            await self.withdraw(cluster, before, request)
        bound = await self.claims.living_owner(before) if url and before and not options.replacing else None
        return WriteResult(node, before is None, delivered, bound, bundle if options.enrolling else b"")

    def _bundle(self, node: Node, token: str) -> bytes:
        secrets = replace(self.context.open_secrets(node), bootstrap_token=token)
        return json.dumps(config_generator.build_bundle(node.config, node.version, secrets)).encode()


def _next_join(
    before: Node | None, options: WriteOptions, now: float, expires: float, token: str | None
) -> JoinState:
    """Returns the join state of a node that is written, with a new attempt if it gets a config URL."""
    join = before.join if before else JoinState()
    if not options.url:
        return join.end_attempt(now)
    join = join.begin_attempt(now, url_expires=expires, token=token, replacing=options.replacing)
    return options.enrolling.bind(join, now) if options.enrolling else join
