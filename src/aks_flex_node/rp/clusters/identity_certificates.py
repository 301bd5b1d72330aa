"""Certificates that a node asks for as its Azure identity: by which it logs in, or by which its kubelet answers.

Unlike a token, an identity is good for more than one request: a node that has lost its certificate gets another one,
as long as it is a flex node. What an identity of ours asks for beyond that is refused.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from aks_flex_node.rp.clusters.access import nodes_of
from aks_flex_node.rp.clusters.nodes import taken
from aks_flex_node.rp.clusters.requests import SERVING_SIGNER, ByIdentity, judge
from aks_flex_node.rp.clusters.serving_certificates import Asker

if TYPE_CHECKING:
    from aks_flex_node.rp.clusters.access import Access
    from aks_flex_node.rp.clusters.clients import Client
    from aks_flex_node.rp.clusters.decisions import Decisions
    from aks_flex_node.rp.clusters.listener import Listener
    from aks_flex_node.rp.clusters.requests import Request
    from aks_flex_node.rp.clusters.serving_certificates import ServingCertificates

OBJECT_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")  # what an identity's user is called


class IdentityCertificates:
    def __init__(
        self,
        cluster: str,
        client: Client,
        listener: Listener,
        decisions: Decisions,
        serving: ServingCertificates,
    ) -> None:
        self._cluster = cluster
        self._client = client
        self._listener = listener
        self._decisions = decisions
        self._serving = serving

    async def decide(self, request: Request) -> None:
        """Of users who are nobody's identity here, others decide."""
        if request.denial:
            return
        node = request.asked_for
        access = await self._listener.access(self._cluster, node) if node else None
        if access is None or access.identity != request.user:
            await self._refuse_other(request)
        elif access.way == "exec" and request.signer == SERVING_SIGNER:
            await self._serving.decide(request, Asker(node, access.identity))
        elif request.accepted:
            if request.issued:
                await self._listener.certified(self._cluster, node, request.name)
        elif why := await self._objection(request, node, access):
            await self._decisions.refuse(request, node, why)
        elif request.approved:
            await self._decisions.accept(request)
        else:
            await self._decisions.approve(request, f"It comes from the identity of node {node}.")

    async def _objection(self, request: Request, node: str, access: Access) -> str:
        # By what it is to be, not by what it was given: that is taken from it only when it has its certificate.
        if await self._listener.way(self._cluster, node) != "certificate":
            return f"Node {node} joins as its identity itself, and needs no certificate for that."
        verdict = judge(request.document, ByIdentity(node, access.identity))
        if not verdict.allowed:
            return verdict.why
        if why := await taken(self._client, node):
            return why
        # The last question, because asking it ends the node's config URL.
        if not await self._listener.asked(self._cluster, node, access.identity, request.name):
            return f"Node {node} has another identity now, or is gone."
        return ""

    async def _refuse_other(self, request: Request) -> None:
        nodes = await nodes_of(self._client, request.user)
        if nodes and not request.accepted:
            why = f"It comes from the identity of node {', '.join(nodes)}, and asks for something else."
            await self._decisions.refuse(request, nodes[0], why)
