"""Tracks the join of each node from cluster events and config URL fetches, and writes the state to the store."""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from aks_flex_node.timestamps import format_utc, parse_utc
from aks_flex_rp.arm.ids import record_resource
from aks_flex_rp.callers import Caller, CallerKind
from aks_flex_rp.counted_events import CountedEvents
from aks_flex_rp.join_state import NEW_URL_REMEDY, JoinState
from aks_flex_rp.nodes import join_rules
from aks_flex_rp.nodes.context import RequestContext, node_busy, retry_on_conflict
from aks_flex_rp.nodes.machine_claims import MachineClaims
from aks_flex_rp.store.model import AuditAction, AuditEvent, AuditOutcome, Conflict

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aks_flex_rp.clusters.facts import ClusterFacts
    from aks_flex_rp.clusters.taints import DesiredTaints
    from aks_flex_rp.delivery.config_url import FetchedBundle
    from aks_flex_rp.join_state import AccessMethod, ClusterAccess
    from aks_flex_rp.nodes.azure_cleanup import AzureCleanup
    from aks_flex_rp.nodes.context import NodeContext
    from aks_flex_rp.nodes.machine_claims import FetchingClient
    from aks_flex_rp.store.model import Document, Node

WATCH_ACTOR = "cluster watch"  # caller of automatic changes in the audit log
WATCH = RequestContext(Caller("", WATCH_ACTOR, CallerKind.APPLICATION), "")

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class JoinTracker:
    """Handles the events of all cluster controllers. An event may arrive twice, and from several replicas."""

    context: NodeContext
    on_cluster_changed: Callable[[str, ClusterFacts], Awaitable[None]]
    count: Callable[[str], None]  # for metrics
    cleanup: AzureCleanup | None = None
    refused_fetches: CountedEvents = field(default_factory=CountedEvents)

    @property
    def claims(self) -> MachineClaims:
        return MachineClaims(self.context, self.refused_fetches)

    async def is_current_token(self, cluster: str, node: str, token_id: str) -> bool:
        found = await self.context.store.node(cluster, node)
        return found is not None and found.join.token == token_id

    async def is_flex_node(self, cluster: str, node: str) -> bool:
        return await self.context.store.node(cluster, node) is not None

    async def granted_access(self, cluster: str, node: str) -> ClusterAccess | None:
        found = await self.context.store.node(cluster, node)
        return found.join.access if found else None

    async def access_method(self, cluster: str, node: str) -> AccessMethod | None:
        found = await self.context.store.node(cluster, node)
        return join_rules.identity_method(found) if found else None

    async def all_granted_access(self, cluster: str) -> dict[str, ClusterAccess]:
        return {
            node.key: node.join.access async for node in self.context.store.each_node(cluster) if node.join.access
        }

    async def api_server_urls(self, cluster: str) -> frozenset[str]:
        nodes = self.context.store.each_node(cluster)
        settings = [node.effective.get("nodeConfig", {}) async for node in nodes]
        urls = (each.get("kubelet", {}).get("serverURL") for each in settings)
        return frozenset(filter(None, urls))

    async def on_access_withdrawn(self, cluster: str, node: str) -> None:
        event = self._event(AuditAction.ACCESS_WITHDRAWN, record_resource((cluster, node)), {})
        await self.context.store.record(event)

    async def on_identity_csr(self, cluster: str, node: str, identity: str, csr: str) -> bool:
        """Records the request and revokes the config URL."""
        after = await self._change(
            cluster,
            node,
            lambda join: join.identity_used(identity, csr),
            AuditAction.IDENTITY_USED,
            identity=identity,
            csr=csr,
        )
        if after is None or after.access is None or after.access.identity != identity:
            return False
        await self.context.delivery.revoke(cluster, node)
        return True

    async def on_identity_certificate(self, cluster: str, node: str, csr: str) -> None:
        await self._record_certificate(cluster, node, lambda join: join.identity_issued(csr), csr=csr)

    async def desired_taints(self, cluster: str, node: str) -> DesiredTaints | None:
        found = await self.context.store.node(cluster, node)
        return join_rules.desired_taints(found) if found else None

    async def deletion_time(self, cluster: str, node: str) -> float | None:
        """Returns the deletion time from the audit log, which is written in the transaction of the deletion."""
        store = self.context.store
        if not (await store.last_known_node(cluster, node)).deleted:
            return None
        events = await store.audit(resource=record_resource((cluster, node)), what=AuditAction.DELETE, limit=1)
        return events[0].at if events else None

    async def on_node_removed(self, cluster: str, node: str) -> None:
        await self.context.store.record(self._event(AuditAction.NODE_REMOVED, record_resource((cluster, node)), {}))
        if self.cleanup:
            await self.cleanup.after_removal(cluster, node)

    async def on_config_fetched(self, bundle: FetchedBundle, client: FetchingClient) -> None:
        """Binds the key of the client, and records the fetch.

        Raises ArmError if another client used the URL, or the node lives on another machine.
        """
        await self.claims.on_fetch(bundle, client)
        await self._change(
            bundle.cluster,
            bundle.node,
            JoinState.config_fetched,
            AuditAction.CONFIG_URL_FETCHED,
            always=True,
            source=client.source,
            request=client.request,
        )

    async def on_join_failed(
        self, cluster: str, node: str, why: str, source: str, request: str, thumbprint: str | None = None
    ) -> None:
        """Records why the machine that fetched the configuration could not join. Its URL and token stay valid. With
        the key of a machine, nothing is recorded unless it is the node's.
        """

        def fail(join: JoinState) -> JoinState:
            known = thumbprint is None or join.keys.is_valid(thumbprint)
            return join.machine_failed(why) if known else join

        await self._change(cluster, node, fail, AuditAction.JOIN_FAILED, why=why, source=source, request=request)

    async def on_token_csr(self, cluster: str, node: str, token_id: str, csr: str) -> bool:
        """Records the use of the token. Returns whether it is the node's token; the URL is revoked first."""
        after = await self._change(
            cluster,
            node,
            lambda join: join.token_used(token_id, csr),
            AuditAction.TOKEN_USED,
            tokenId=token_id,
            csr=csr,
        )
        if after is None or after.token != token_id:
            return False
        await self.context.delivery.revoke(cluster, node)
        return True

    async def on_csr_denied(self, cluster: str, node: str, token_id: str, csr: str, why: str) -> None:
        self.count("refused")
        detail = {"tokenId": token_id, "csr": csr, "why": why}
        what = AuditAction.CERTIFICATE_DENIED
        if not node or not await self._change(cluster, node, lambda join: join, what, always=True, **detail):
            resource = record_resource((cluster, node) if node else (cluster,))
            await self.context.store.record(self._event(what, resource, detail))

    async def on_token_certificate(self, cluster: str, node: str, token_id: str, csr: str) -> None:
        await self._record_certificate(
            cluster, node, lambda join: join.token_issued(token_id, csr), tokenId=token_id, csr=csr
        )

    async def on_token_failed(self, cluster: str, node: str, token_id: str, why: str) -> None:
        """Records that the token failed, which also ends the URL. A joined node stays joined."""

        def fail(join: JoinState) -> JoinState:
            after = join.token_failed(token_id, f"{why} {NEW_URL_REMEDY}")
            if after != join and not join.is_joined:
                self.count("failed")
            return after

        if await self.is_current_token(cluster, node, token_id):
            await self.context.delivery.revoke(cluster, node)
            await self._change(cluster, node, fail, AuditAction.JOIN_FAILED, tokenId=token_id, why=why)

    async def on_node_observed(self, cluster: str, node: str, ready: dict[str, Any] | None) -> None:
        joins, machine = False, ready.get("machine") if ready else None

        def observe(join: JoinState) -> JoinState:
            nonlocal joins
            joins = False
            if ready is None:
                return join.left()
            # A heartbeat from before this attempt belongs to an earlier join and proves nothing.
            admitted = join.issued is not None and ready.get("status") == "True"  # regardless of the kubelet's clock
            if join.is_joined or not (admitted or _heard_since(ready, join.since or 0.0)):
                return join
            joins = True
            return join.joined()

        what = AuditAction.NODE_LEFT if ready is None else AuditAction.NODE_JOINED
        await self._change(cluster, node, observe, what)
        if joins:
            self.count("joined")
            await self.context.delivery.revoke(
                cluster, node
            )  # the node has its configuration, whichever way it joined
        await self._record_readiness(cluster, node, ready)
        if machine:
            await self.claims.on_observed(cluster, node, machine, WATCH)

    async def on_nodes_listed(self, cluster: str, names: frozenset[str]) -> None:
        async for node in self.context.store.each_node(cluster):
            if node.key not in names and node.join.is_joined:
                await self.on_node_observed(cluster, node.key, None)

    async def on_cluster_facts(self, cluster: str, facts: ClusterFacts) -> None:
        await self.on_cluster_changed(cluster, facts)

    async def _record_readiness(self, cluster: str, key: str, ready: dict[str, Any] | None) -> None:
        """Records the readiness and the applied configuration of an unmanaged node, which only the cluster knows."""

        async def write(node: Node | None) -> None:
            monitored = node is not None and node.is_monitored
            if node is None or (monitored and "appliedConfigVersion" in node.status):
                return  # a daemon reports
            now = self.context.now()
            status = node.status if monitored else _with_readiness(node.status, ready, now)
            status = _with_applied_config(status, ready, node.version)
            if status != node.status:
                await self.context.put_status(node, status, now if ready else node.last_seen)

        with suppress(Conflict):  # another replica or the node itself has reported it
            await retry_on_conflict(lambda: self.context.store.node(cluster, key), write)

    async def _record_certificate(
        self, cluster: str, node: str, transition: Callable[[JoinState], JoinState], **detail: Any
    ) -> None:
        def issue(join: JoinState) -> JoinState:
            after = transition(join)
            if after != join:
                self.count("issued")
            return after

        await self._change(cluster, node, issue, AuditAction.CERTIFICATE_ISSUED, **detail)

    async def _change(
        self,
        cluster: str,
        key: str,
        transition: Callable[[JoinState], JoinState],
        what: AuditAction,
        *,
        always: bool = False,
        **detail: object,
    ) -> JoinState | None:
        """Changes the join state and writes the audit event in one transaction.

        Returns the state, or None without node.
        """

        async def write(node: Node | None) -> JoinState | None:
            if node is None:
                return None
            join = transition(node.join)
            if what is AuditAction.CONFIG_URL_FETCHED or (
                join.is_joined and not node.join.is_joined and join.delivered is None
            ):
                join = join.with_delivered(node.version)
            event = self._event(what, record_resource((cluster, node.name)), dict(detail))
            if join == node.join:
                if always:
                    await self.context.store.record(event)
                return join
            await self.context.put_join(node, join, [event])
            log.info("%s is %s (%s)", node.name, join.phase, what)
            return join

        return await self.context.change_node(cluster, key, write, busy=node_busy)

    def _event(self, what: AuditAction, resource: str, detail: dict[str, Any]) -> AuditEvent:
        source, request = str(detail.pop("source", "")), str(detail.pop("request", ""))
        outcome = AuditOutcome.DENIED if what is AuditAction.CERTIFICATE_DENIED else AuditOutcome.OK
        return AuditEvent(
            self.context.now(),
            WATCH_ACTOR if not source else "bearer of the URL",
            what,
            resource,
            source,
            request,
            outcome,
            detail,
        )


def _with_readiness(status: Document, ready: dict[str, Any] | None, now: float) -> Document:
    condition = dict(ready) if ready else {"type": "Ready", "status": "Unknown", "reason": "NodeNotInCluster"}
    version = condition.pop("kubeletVersion", None)
    names = ("type", "status", "reason", "message", "lastTransitionTime")
    shown = {name: condition[name] for name in names if condition.get(name)}
    shown.setdefault("lastTransitionTime", format_utc(now))
    others = [each for each in status.get("conditions", ()) if each["type"] != "Ready"]
    after = {**status, "conditions": [shown, *others]}
    return {**after, "kubeletVersion": version} if version else after


def _with_applied_config(status: Document, ready: dict[str, Any] | None, newest: int) -> Document:
    """Adds the configuration that a bootstrap-only node has applied, which it writes to its Node at each join."""
    version, at = (str((ready or {}).get(key) or "") for key in ("appliedConfigVersion", "lastConfigApplied"))
    if not (version.isascii() and version.isdigit()) or len(version) > len(str(newest)) or int(version) > newest:
        return status
    with suppress(ValueError):
        parse_utc(at)
        return {**status, "appliedConfigVersion": version, "lastConfigApplied": at}
    return status


def _heard_since(ready: dict[str, Any], since: float) -> bool:
    """Returns whether the kubelet sent a heartbeat since then. Conditions set by the cluster do not count."""
    text = ready.get("lastHeartbeatTime")
    if not text:
        return False
    return parse_utc(text).timestamp() >= int(since)
