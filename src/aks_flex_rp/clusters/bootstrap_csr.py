"""Handles the first certificate of a node, requested with its bootstrap token, and records decisions on CSRs.

A token is valid for one request. The first request is recorded in the token's Secret, so several replicas may watch
the
same cluster. The Secret is deleted when the outcome is known and reported: a kubelet watches its request with the
token, and a restarted service finds there what it still has to report.
"""

from __future__ import annotations

import logging
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from aks_flex_rp.clusters import bootstrap_tokens
from aks_flex_rp.clusters.client import ApiRefused
from aks_flex_rp.clusters.csr_policy import (
    ACCEPTED,
    APPROVED_BY_US,
    DENIED_BY_US,
    REQUESTS,
    BootstrapExpectation,
    CertificateRequest,
    check_csr,
)
from aks_flex_rp.clusters.informer import handle_each
from aks_flex_rp.clusters.node_controller import name_conflict

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from datetime import timedelta

    from aks_flex_rp.clusters.bootstrap_tokens import BootstrapToken, TokenClaim
    from aks_flex_rp.clusters.client import KubeClient
    from aks_flex_rp.clusters.event_handler import ClusterEventHandler


TOKEN_UNKNOWN = "The token that it was sent with was used already, or was revoked."  # noqa: S105
TOKEN_EXPIRED = "The token expired before it was used."  # noqa: S105


def utc_now() -> datetime:
    return datetime.now(timezone.utc)


class BootstrapCsrHandler:
    def __init__(
        self,
        cluster: str,
        client: KubeClient,
        handler: ClusterEventHandler,
        decisions: CsrDecisions,
        grace: timedelta,
    ) -> None:
        self._cluster = cluster
        self._client = client
        self._handler = handler
        self._decisions = decisions
        self._grace = grace
        self._claimed: dict[str, BootstrapToken] = {}  # used, and it is not told yet how that ended
        self._unused: dict[str, BootstrapToken] = {}  # as the last sweep saw them

    async def decide(self, request: CertificateRequest) -> None:
        """Step by step, and from wherever an earlier run or another replica has stopped."""
        if request.denial:
            return
        token = await bootstrap_tokens.find_token(self._client, request.token_id) if request.token_id else None
        token = token and await bootstrap_tokens.claim_token(
            self._client, token, request.name, request.uid, utc_now()
        )
        if token is None or token.claim is None:
            if not request.accepted:
                await self._decisions.refuse(request, request.requested_node, TOKEN_UNKNOWN)
        elif token.claim.uid != request.uid:
            why = f"The token was already used by request {token.claim.csr}, and a token is for one request."
            await self._decisions.refuse(request, token.node, why)
        else:
            self._claimed[token.id] = token
            await self._answer(request, token, token.claim)

    async def tidy(self) -> None:
        """From time to time: those whose time is over, and those whose end could not be told."""
        await handle_each(list(self._claimed.values()), self._settle)

    async def sweep(self) -> None:
        """Now and then: tokens that have expired, or are no node's any more, or whose replica has ended."""
        there = {token.id: token for token in await bootstrap_tokens.list_tokens(self._client)}
        # The cluster may be faster to remove one that has expired; then it is known from the sweep before.
        known = (self._unused | there).items()
        self._unused = {id_: token for id_, token in known if id_ in there or utc_now() >= token.expires}
        await handle_each(list(self._unused.values()), self._look_at)

    async def _answer(self, request: CertificateRequest, token: BootstrapToken, claim: TokenClaim) -> None:
        why = "" if request.accepted else await self._objection(request, token)
        if why:
            if await self._decisions.refuse(request, token.node, why):
                await self._failed(token, why)
            return
        if not request.approved:
            await self._decisions.approve(request, f"It is the first one for node {token.node}.")
        elif not request.accepted:
            await self._decisions.accept(request)
        await self._finish(token, claim, request)

    async def _objection(self, request: CertificateRequest, token: BootstrapToken) -> str:
        decision = check_csr(
            request.document, BootstrapExpectation(token.node, token.id, bootstrap_tokens.TOKEN_GROUP)
        )
        if not decision.allowed:
            return decision.why
        if why := await name_conflict(self._client, token.node):
            return why
        # The last question, because asking it ends the node's config URL.
        if not await self._handler.on_token_csr(self._cluster, token.node, token.id, request.name):
            return f"Node {token.node} has another token now, or is gone."
        return ""

    async def _settle(self, token: BootstrapToken) -> None:
        if claim := token.claim:
            document = await self._client.find(f"{REQUESTS}/{claim.csr}")
            same = document and document["metadata"]["uid"] == claim.uid
            await self._finish(token, claim, CertificateRequest.read(document) if document and same else None)

    async def _finish(self, token: BootstrapToken, claim: TokenClaim, request: CertificateRequest | None) -> None:
        """If it has ended."""
        if request and request.issued:
            await self._handler.on_token_certificate(self._cluster, token.node, token.id, claim.csr)
            await self._end(token)
        elif why := self._failure(claim, request):
            await self._failed(token, why)

    def _failure(self, claim: TokenClaim, request: CertificateRequest | None) -> str:
        if request and request.failed:
            return f"The cluster's signer refused it: {request.failed}"
        if request and request.denial:
            return request.denial
        if utc_now() - claim.at > self._grace:
            return f"No certificate was issued within {self._grace.total_seconds():.0f} s."
        return ""

    async def _look_at(self, token: BootstrapToken) -> None:
        if token.claim:
            self._claimed[token.id] = token
            self._unused.pop(token.id)
        elif utc_now() >= token.expires:
            await self._failed(token, TOKEN_EXPIRED)
        elif utc_now() - token.created > bootstrap_tokens.ORPHAN_AGE and not await self._expected(token):
            await self._end(token)

    async def _failed(self, token: BootstrapToken, why: str) -> None:
        # A node that has another token does not suffer from what became of the old one.
        if await self._expected(token):
            await self._handler.on_token_failed(self._cluster, token.node, token.id, why)
        await self._end(token)

    async def _expected(self, token: BootstrapToken) -> bool:
        return await self._handler.is_current_token(self._cluster, token.node, token.id)

    async def _end(self, token: BootstrapToken) -> None:
        await bootstrap_tokens.revoke_token(self._client, token.id)
        self._claimed.pop(token.id, None)
        self._unused.pop(token.id, None)


log = logging.getLogger(__name__)


class CsrDecisions:
    def __init__(self, cluster: str, client: KubeClient, handler: ClusterEventHandler) -> None:
        self._cluster = cluster
        self._client = client
        self._handler = handler
        self._untold: list[Callable[[], Awaitable[None]]] = []

    async def approve(self, request: CertificateRequest, why: str) -> None:
        """When somebody else was faster, another event tells what they did."""
        await self._decide(request, "Approved", APPROVED_BY_US, why)

    async def accept(self, request: CertificateRequest) -> None:
        """Somebody else has approved it. It is a good one, and stays so after its token is gone."""
        await self._client.merge(f"{REQUESTS}/{request.name}", {"metadata": {"annotations": {ACCEPTED: request.uid}}})

    async def refuse(self, request: CertificateRequest, node: str, why: str) -> bool:
        """Whether it was us. When somebody else was faster, another event tells what they did."""
        if request.approved:
            why = await self._undo(request, why)
        elif not await self._decide(request, "Denied", DENIED_BY_US, why):
            why = ""
        if why:
            log.warning("%s: request %s of %s was refused. %s", self._cluster, request.name, request.user, why)
            await self._tell(
                lambda: self._handler.on_csr_denied(self._cluster, node, request.token_id, request.name, why)
            )
        return bool(why)

    async def retry_reports(self) -> None:
        untold, self._untold = self._untold, []
        for tell in untold:
            await self._tell(tell)

    async def _undo(self, request: CertificateRequest, why: str) -> str:
        """Somebody else has approved what we would not: it goes, before it is signed if we are lucky.

        What there is to tell of it; nothing, when another replica does.
        """
        # As it is now: another replica may have accepted it meanwhile, and marked it before the token went.
        document = await self._client.find(f"{REQUESTS}/{request.name}")
        if not document or (current := CertificateRequest.read(document)).uid != request.uid or current.accepted:
            return ""
        if not await self._client.delete(f"{REQUESTS}/{request.name}", {"uid": request.uid}):
            return ""
        late = " Its certificate was issued already, and is valid until it expires." if current.issued else ""
        return f"{why} It had been approved by somebody else ({current.approval or 'no reason given'}).{late}"

    async def _decide(self, request: CertificateRequest, decision: str, reason: str, why: str) -> bool:
        condition = {"type": decision, "status": "True", "reason": reason, "message": why}
        status = request.document.get("status") or {}
        changed = {**status, "conditions": [*(status.get("conditions") or []), condition]}
        try:
            await self._client.replace(f"{REQUESTS}/{request.name}/approval", {**request.document, "status": changed})
        except ApiRefused as refusal:
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
