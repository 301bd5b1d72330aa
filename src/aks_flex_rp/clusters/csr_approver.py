"""CSR approver: dispatches each CertificateSigningRequest by its requester, and handles kubelet serving certificates
and certificates requested with the node's Azure identity.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from aks_flex_node.timestamps import parse_utc
from aks_flex_rp.clusters import bootstrap_tokens
from aks_flex_rp.clusters.access import identity_nodes
from aks_flex_rp.clusters.bootstrap_csr import BootstrapCsrHandler, CsrDecisions, utc_now
from aks_flex_rp.clusters.certificate_names import ServingExpectation, read_cluster_names
from aks_flex_rp.clusters.csr_policy import (
    REQUESTS,
    SERVING_SIGNER,
    CertificateRequest,
    IdentityExpectation,
    check_csr,
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
    identity: str = ""  # by which its kubelet asks, where it is not as the node itself


class ServingCsrHandler:
    def __init__(
        self,
        cluster: str,
        client: KubeClient,
        handler: ClusterEventHandler,
        decisions: CsrDecisions,
        facts: Callable[[], Awaitable[ClusterFacts]],
        grace: timedelta,
    ) -> None:
        self._cluster = cluster
        self._client = client
        self._handler = handler
        self._decisions = decisions
        self._facts = facts
        self._grace = grace
        # By request, of nodes that have not said yet where they are: who asks for whom.
        self._waiting: dict[str, CsrRequester] = {}

    async def decide(self, request: CertificateRequest, asker: CsrRequester | None = None) -> None:
        """Without `asker` it is the node itself."""
        asker = asker or CsrRequester(request.node)
        if request.denial or request.approved or not await self._handler.is_flex_node(self._cluster, asker.node):
            self._waiting.pop(request.name, None)
            return
        document = await self._client.find(f"{NODES}/{asker.node}")
        if not _says_where(document) and utc_now() - parse_utc(request.created) < self._grace:
            self._waiting[request.name] = asker  # a kubelet may ask a moment before its Node says where it is
            return
        await self._judge(request, asker, document or {"metadata": {"name": asker.node}})
        self._waiting.pop(request.name, None)

    async def tidy(self) -> None:
        await handle_each(list(self._waiting), self._look_again)

    async def _look_again(self, name: str) -> None:
        if document := await self._client.find(f"{REQUESTS}/{name}"):
            await self.decide(CertificateRequest.read(document), self._waiting.get(name))
        else:
            self._waiting.pop(name, None)

    async def _judge(self, request: CertificateRequest, asker: CsrRequester, node: KubeObject) -> None:
        servers = await self._handler.api_server_urls(self._cluster)
        cluster_names = await read_cluster_names(self._client, await self._facts(), asker.node, servers)
        decision = check_csr(request.document, ServingExpectation.of(node, cluster_names, asker.identity))
        if decision.allowed:
            await self._decisions.approve(request, f"Every name in it is one of {asker.node}.")
        else:
            await self._decisions.refuse(request, asker.node, decision.why)


def _says_where(node: KubeObject | None) -> bool:
    return bool(node and (node.get("status") or {}).get("addresses"))


OBJECT_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")  # what an identity's user is called


class IdentityCsrHandler:
    def __init__(
        self,
        cluster: str,
        client: KubeClient,
        handler: ClusterEventHandler,
        decisions: CsrDecisions,
        serving: ServingCsrHandler,
    ) -> None:
        self._cluster = cluster
        self._client = client
        self._handler = handler
        self._decisions = decisions
        self._serving = serving

    async def decide(self, request: CertificateRequest) -> None:
        """Of users who are nobody's identity here, others decide."""
        if request.denial:
            return
        node = request.requested_node
        access = await self._handler.granted_access(self._cluster, node) if node else None
        if access is None or access.identity != request.user:
            await self._refuse_other(request)
        elif access.method is AccessMethod.EXEC and request.signer == SERVING_SIGNER:
            await self._serving.decide(request, CsrRequester(node, access.identity))
        elif request.accepted:
            if request.issued:
                await self._handler.on_identity_certificate(self._cluster, node, request.name)
        elif why := await self._objection(request, node, access):
            await self._decisions.refuse(request, node, why)
        elif request.approved:
            await self._decisions.accept(request)
        else:
            await self._decisions.approve(request, f"It comes from the identity of node {node}.")

    async def _objection(self, request: CertificateRequest, node: str, access: ClusterAccess) -> str:
        # By what it is to be, not by what it was given: that is taken from it only when it has its certificate.
        if await self._handler.access_method(self._cluster, node) is not AccessMethod.CERTIFICATE:
            return f"Node {node} joins as its identity itself, and needs no certificate for that."
        decision = check_csr(request.document, IdentityExpectation(node, access.identity))
        if not decision.allowed:
            return decision.why
        if why := await name_conflict(self._client, node):
            return why
        # The last question, because asking it ends the node's config URL.
        if not await self._handler.on_identity_csr(self._cluster, node, access.identity, request.name):
            return f"Node {node} has another identity now, or is gone."
        return ""

    async def _refuse_other(self, request: CertificateRequest) -> None:
        nodes = await identity_nodes(self._client, request.user)
        if nodes and not request.accepted:
            why = f"It comes from the identity of node {', '.join(nodes)}, and asks for something else."
            await self._decisions.refuse(request, nodes[0], why)


ISSUE_GRACE_SECONDS = 60.0  # seconds for a certificate to be issued


class CsrApprover:
    def __init__(
        self,
        cluster: str,
        client: KubeClient,
        handler: ClusterEventHandler,
        facts: Callable[[], Awaitable[ClusterFacts]],
        grace: float = ISSUE_GRACE_SECONDS,
    ) -> None:
        within = timedelta(seconds=grace)
        self._decisions = decisions = CsrDecisions(cluster, client, handler)
        self._first = BootstrapCsrHandler(cluster, client, handler, decisions, within)
        self._serving = ServingCsrHandler(cluster, client, handler, decisions, facts, within)
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

    async def tidy(self) -> None:
        """From time to time: what no event tells of, because it is the passing of time or a failure of ours."""
        await handle_each((self._decisions.retry_reports, self._first.tidy, self._serving.tidy), lambda one: one())

    async def sweep(self) -> None:
        """Now and then: tokens that nobody will use any more."""
        await self._first.sweep()
