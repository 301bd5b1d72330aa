"""Grants certificates to flex nodes, and to nobody else: to whom it leaves a request depends on who sent it."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from aks_flex_node.rp.clusters import tokens
from aks_flex_node.rp.clusters.decisions import Decisions
from aks_flex_node.rp.clusters.first_certificates import FirstCertificates
from aks_flex_node.rp.clusters.identity_certificates import OBJECT_ID, IdentityCertificates
from aks_flex_node.rp.clusters.requests import SERVING_SIGNER, Request
from aks_flex_node.rp.clusters.serving_certificates import ServingCertificates
from aks_flex_node.rp.clusters.watches import each

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aks_flex_node.rp.clusters.clients import Client, Object
    from aks_flex_node.rp.clusters.facts import ClusterFacts
    from aks_flex_node.rp.clusters.listener import Listener

GRACE = 60.0  # seconds for a certificate to be issued


class Approver:
    def __init__(
        self,
        cluster: str,
        client: Client,
        listener: Listener,
        facts: Callable[[], Awaitable[ClusterFacts]],
        grace: float = GRACE,
    ) -> None:
        within = timedelta(seconds=grace)
        self._decisions = decisions = Decisions(cluster, client, listener)
        self._first = FirstCertificates(cluster, client, listener, decisions, within)
        self._serving = ServingCertificates(cluster, client, listener, decisions, facts, within)
        self._by_identity = IdentityCertificates(cluster, client, listener, decisions, self._serving)

    async def listed(self, items: list[Object]) -> None:
        await each(items, lambda item: self.changed("ADDED", item))

    async def changed(self, kind: str, item: Object) -> None:
        if kind == "DELETED":
            return
        request = Request.read(item)
        if tokens.GROUP in request.groups:
            await self._first.decide(request)
        elif request.signer == SERVING_SIGNER and request.node:
            await self._serving.decide(request)
        elif OBJECT_ID.fullmatch(request.user):
            await self._by_identity.decide(request)

    async def tidy(self) -> None:
        """From time to time: what no event tells of, because it is the passing of time or a failure of ours."""
        await each((self._decisions.tell_again, self._first.tidy, self._serving.tidy), lambda one: one())

    async def sweep(self) -> None:
        """Now and then: tokens that nobody will use any more."""
        await self._first.sweep()
