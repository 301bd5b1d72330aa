"""What is done about a request for a certificate: it is approved, or refused, and the service hears of it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from aks_flex_node.rp.clusters.clients import Refused
from aks_flex_node.rp.clusters.requests import ACCEPTED, APPROVED_BY_US, DENIED_BY_US, REQUESTS, Request

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aks_flex_node.rp.clusters.clients import Client
    from aks_flex_node.rp.clusters.listener import Listener

log = logging.getLogger(__name__)


class Decisions:
    def __init__(self, cluster: str, client: Client, listener: Listener) -> None:
        self._cluster = cluster
        self._client = client
        self._listener = listener
        self._untold: list[Callable[[], Awaitable[None]]] = []

    async def approve(self, request: Request, why: str) -> None:
        """When somebody else was faster, another event tells what they did."""
        await self._decide(request, "Approved", APPROVED_BY_US, why)

    async def accept(self, request: Request) -> None:
        """Somebody else has approved it. It is a good one, and stays so after its token is gone."""
        await self._client.merge(f"{REQUESTS}/{request.name}", {"metadata": {"annotations": {ACCEPTED: request.uid}}})

    async def refuse(self, request: Request, node: str, why: str) -> bool:
        """Whether it was us. When somebody else was faster, another event tells what they did."""
        if request.approved:
            why = await self._undo(request, why)
        elif not await self._decide(request, "Denied", DENIED_BY_US, why):
            why = ""
        if why:
            log.warning("%s: request %s of %s was refused. %s", self._cluster, request.name, request.user, why)
            await self._tell(lambda: self._listener.refused(self._cluster, node, request.token_id, request.name, why))
        return bool(why)

    async def tell_again(self) -> None:
        untold, self._untold = self._untold, []
        for tell in untold:
            await self._tell(tell)

    async def _undo(self, request: Request, why: str) -> str:
        """Somebody else has approved what we would not: it goes, before it is signed if we are lucky.

        What there is to tell of it; nothing, when another replica does.
        """
        # As it is now: another replica may have accepted it meanwhile, and marked it before the token went.
        document = await self._client.find(f"{REQUESTS}/{request.name}")
        if not document or (current := Request.read(document)).uid != request.uid or current.accepted:
            return ""
        if not await self._client.delete(f"{REQUESTS}/{request.name}", {"uid": request.uid}):
            return ""
        late = " Its certificate was issued already, and is valid until it expires." if current.issued else ""
        return f"{why} It had been approved by somebody else ({current.approval or 'no reason given'}).{late}"

    async def _decide(self, request: Request, decision: str, reason: str, why: str) -> bool:
        condition = {"type": decision, "status": "True", "reason": reason, "message": why}
        status = request.document.get("status") or {}
        changed = {**status, "conditions": [*(status.get("conditions") or []), condition]}
        try:
            await self._client.replace(f"{REQUESTS}/{request.name}/approval", {**request.document, "status": changed})
        except Refused as refusal:
            if refusal.status in {404, 409}:
                return False
            raise
        return True

    async def _tell(self, tell: Callable[[], Awaitable[None]]) -> None:
        """What was done is done; who could not hear of it now hears of it later."""
        try:
            await tell()
        except Exception:
            log.warning("%s: the service could not take a message; it is told again.", self._cluster, exc_info=True)
            self._untold.append(tell)
