"""The certificate by which a kubelet answers: it is asked for by a node that is already known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from aks_flex_node.rp.clusters import tokens
from aks_flex_node.rp.clusters.first_certificates import now
from aks_flex_node.rp.clusters.nodes import NODES
from aks_flex_node.rp.clusters.own_names import Serving, read_surroundings
from aks_flex_node.rp.clusters.requests import REQUESTS, Request, judge
from aks_flex_node.rp.clusters.watches import each

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from datetime import timedelta

    from aks_flex_node.rp.clusters.clients import Client, Object
    from aks_flex_node.rp.clusters.decisions import Decisions
    from aks_flex_node.rp.clusters.facts import ClusterFacts
    from aks_flex_node.rp.clusters.listener import Listener


@dataclass(frozen=True)
class Asker:
    node: str
    identity: str = ""  # by which its kubelet asks, where it is not as the node itself


class ServingCertificates:
    def __init__(
        self,
        cluster: str,
        client: Client,
        listener: Listener,
        decisions: Decisions,
        facts: Callable[[], Awaitable[ClusterFacts]],
        grace: timedelta,
    ) -> None:
        self._cluster = cluster
        self._client = client
        self._listener = listener
        self._decisions = decisions
        self._facts = facts
        self._grace = grace
        # By request, of nodes that have not said yet where they are: who asks for whom.
        self._waiting: dict[str, Asker] = {}

    async def decide(self, request: Request, asker: Asker | None = None) -> None:
        """Without `asker` it is the node itself."""
        asker = asker or Asker(request.node)
        if request.denial or request.approved or not await self._listener.expects_node(self._cluster, asker.node):
            self._waiting.pop(request.name, None)
            return
        document = await self._client.find(f"{NODES}/{asker.node}")
        if not _says_where(document) and now() - tokens.moment(request.created) < self._grace:
            self._waiting[request.name] = asker  # a kubelet may ask a moment before its Node says where it is
            return
        await self._judge(request, asker, document or {"metadata": {"name": asker.node}})
        self._waiting.pop(request.name, None)

    async def tidy(self) -> None:
        await each(list(self._waiting), self._look_again)

    async def _look_again(self, name: str) -> None:
        if document := await self._client.find(f"{REQUESTS}/{name}"):
            await self.decide(Request.read(document), self._waiting.get(name))
        else:
            self._waiting.pop(name, None)

    async def _judge(self, request: Request, asker: Asker, node: Object) -> None:
        servers = await self._listener.servers(self._cluster)
        around = await read_surroundings(self._client, await self._facts(), asker.node, servers)
        verdict = judge(request.document, Serving.of(node, around, asker.identity))
        if verdict.allowed:
            await self._decisions.approve(request, f"Every name in it is one of {asker.node}.")
        else:
            await self._decisions.refuse(request, asker.node, verdict.why)


def _says_where(node: Object | None) -> bool:
    return bool(node and (node.get("status") or {}).get("addresses"))
