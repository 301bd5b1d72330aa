"""CSR approver: dispatches each CertificateSigningRequest by its requester.

Also handles kubelet serving certificates and certificates requested with the node's Azure identity.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING

from aks_flex_node.timestamps import parse_utc
from aks_flex_rp.clusters import bootstrap_tokens
from aks_flex_rp.clusters.access import identity_nodes
from aks_flex_rp.clusters.bootstrap_csr import BootstrapCsrHandler, CsrDecisions, utc_now
from aks_flex_rp.clusters.csr_policy import (
    REQUESTS,
    SERVING_SIGNER,
    CertificateRequest,
    IdentityExpectation,
    ServingExpectation,
    check_csr,
    read_cluster_names,
)
from aks_flex_rp.clusters.informer import handle_each
from aks_flex_rp.clusters.node_controller import NODES, name_conflict
from aks_flex_rp.join_state import AccessMethod

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aks_flex_rp.clusters.client import KubeClient, KubeObject
    from aks_flex_rp.clusters.event_handler import ClusterEventHandler
    from aks_flex_rp.clusters.facts import ClusterFacts
    from aks_flex_rp.join_state import ClusterAccess


@dataclass(frozen=True)
class CsrRequester:
    node: str
    identity: str = ""  # user that the kubelet authenticates as, if not the node's own


@dataclass(frozen=True)
class ServingCsrHandler:
    cluster: str
    client: KubeClient
    handler: ClusterEventHandler
    decisions: CsrDecisions
    facts: Callable[[], Awaitable[ClusterFacts]]
    grace: timedelta
    shared_addresses: bool
    waiting: dict[str, CsrRequester] = field(default_factory=dict)  # by request, for nodes without addresses yet

    async def decide(self, request: CertificateRequest, requester: CsrRequester | None = None) -> None:
        """Decides on a serving certificate. Without `requester`, the requester is the node itself."""
        requester = requester or CsrRequester(request.node)
        if request.denial or request.approved or not await self.handler.is_flex_node(self.cluster, requester.node):
            self.waiting.pop(request.name, None)
            return
        document = await self.client.find(f"{NODES}/{requester.node}")
        if not _has_addresses(document) and utc_now() - parse_utc(request.created) < self.grace:
            self.waiting[request.name] = requester  # a kubelet may send the request before its Node has addresses
            return
        await self._judge(request, requester, document or {"metadata": {"name": requester.node}})
        self.waiting.pop(request.name, None)

    async def clean_up(self) -> None:
        await handle_each(list(self.waiting), self._decide_again)

    async def _decide_again(self, name: str) -> None:
        if document := await self.client.find(f"{REQUESTS}/{name}"):
            await self.decide(CertificateRequest.read(document), self.waiting.get(name))
        else:
            self.waiting.pop(name, None)

    async def _judge(self, request: CertificateRequest, requester: CsrRequester, node: KubeObject) -> None:
        servers = await self.handler.api_server_urls(self.cluster)
        cluster_names = await read_cluster_names(
            self.client, await self.facts(), requester.node, servers, shared=self.shared_addresses
        )
        if why := check_csr(request, ServingExpectation.of(node, cluster_names, requester.identity)):
            await self.decisions.refuse(request, requester.node, why)
        else:
            await self.decisions.approve(request, f"All names belong to node {requester.node}.")


def _has_addresses(node: KubeObject | None) -> bool:
    return bool(node and (node.get("status") or {}).get("addresses"))


OBJECT_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")  # user name of an Azure identity


@dataclass(frozen=True)
class IdentityCsrHandler:
    cluster: str
    client: KubeClient
    handler: ClusterEventHandler
    decisions: CsrDecisions
    serving: ServingCsrHandler

    async def decide(self, request: CertificateRequest) -> None:
        """Decides on a request of an Azure identity. Requests of users that are no node's identity are ignored."""
        if request.denial:
            return
        node = request.requested_node
        access = await self.handler.granted_access(self.cluster, node) if node else None
        if access is None or access.identity != request.user:
            await self._refuse_other(request)
        elif access.method is AccessMethod.EXEC and request.signer == SERVING_SIGNER:
            await self.serving.decide(request, CsrRequester(node, access.identity))
        elif request.accepted:
            if request.issued:
                await self.handler.on_identity_certificate(self.cluster, node, request.name)
        elif why := await self._objection(request, node, access):
            await self.decisions.refuse(request, node, why)
        elif request.approved:
            await self.decisions.accept(request)
        else:
            await self.decisions.approve(request, f"Requested by the identity of node {node}.")

    async def _objection(self, request: CertificateRequest, node: str, access: ClusterAccess) -> str:
        # Checks the desired method, not the granted access, which is removed only after the certificate was issued.
        if await self.handler.access_method(self.cluster, node) is not AccessMethod.CERTIFICATE:
            return f"Node {node} authenticates with its Azure identity and needs no certificate."
        if why := check_csr(request, IdentityExpectation(node, access.identity)):
            return why
        if why := await name_conflict(self.client, node):
            return why
        # This must be the last check, because it ends the node's config URL.
        if not await self.handler.on_identity_csr(self.cluster, node, access.identity, request.name):
            return f"Node {node} has another identity or was deleted."
        return ""

    async def _refuse_other(self, request: CertificateRequest) -> None:
        nodes = await identity_nodes(self.client, request.user)
        if nodes and not request.accepted:
            why = f"The identity of node {', '.join(nodes)} requested another certificate than its node's."
            await self.decisions.refuse(request, nodes[0], why)


ISSUE_GRACE_SECONDS = 60.0  # seconds to issue a certificate


class CsrApprover:
    def __init__(
        self,
        cluster: str,
        client: KubeClient,
        handler: ClusterEventHandler,
        facts: Callable[[], Awaitable[ClusterFacts]],
        grace: float = ISSUE_GRACE_SECONDS,
        *,
        shared_addresses: bool = False,
    ) -> None:
        """`shared_addresses` allows serving certificates for an address that another flex node also has."""
        within = timedelta(seconds=grace)
        self._decisions = decisions = CsrDecisions(cluster, client, handler)
        self._first = BootstrapCsrHandler(cluster, client, handler, decisions, within)
        self._serving = ServingCsrHandler(
            cluster, client, handler, decisions, facts, within, shared_addresses=shared_addresses
        )
        self._by_identity = IdentityCsrHandler(cluster, client, handler, decisions, self._serving)

    async def listed(self, items: list[KubeObject]) -> None:
        await handle_each(items, lambda item: self.changed("ADDED", item))

    async def changed(self, kind: str, item: KubeObject) -> None:
        if kind == "DELETED":
            return
        request = CertificateRequest.read(item)
        if bootstrap_tokens.TOKEN_GROUP in request.groups:
            await self._first.decide(request)
        elif request.signer == SERVING_SIGNER and request.node:
            await self._serving.decide(request)
        elif OBJECT_ID.fullmatch(request.user):
            await self._by_identity.decide(request)

    async def clean_up(self) -> None:
        """Handles what no event triggers: timeouts and failed reports."""
        await handle_each(
            (self._decisions.retry_reports, self._first.clean_up, self._serving.clean_up), lambda one: one()
        )

    async def sweep(self) -> None:
        """Removes tokens that can no longer be used."""
        await self._first.sweep()
