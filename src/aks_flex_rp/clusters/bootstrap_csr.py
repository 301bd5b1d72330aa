"""Handles the first certificate of a node, requested with its bootstrap token, and records decisions on CSRs.

A token is valid for one request. The first request is stated in the token's record, so several replicas may watch
the same cluster. Both are deleted when the outcome is known and reported: a kubelet watches its request with the
token, and a restarted service finds in the record what it still has to report.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
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


TOKEN_UNKNOWN = "The bootstrap token of the request was already used or was revoked."  # noqa: S105
TOKEN_EXPIRED = "The bootstrap token expired before it was used."  # noqa: S105


def utc_now() -> datetime:
    return datetime.now(timezone.utc)


@dataclass
class BootstrapCsrHandler:
    cluster: str
    client: KubeClient
    handler: ClusterEventHandler
    decisions: CsrDecisions
    grace: timedelta
    claimed: dict[str, BootstrapToken] = field(default_factory=dict)  # used, and the outcome is not reported yet
    unused: dict[str, BootstrapToken] = field(default_factory=dict)  # as of the last sweep

    async def decide(self, request: CertificateRequest) -> None:
        """Decides on a request. Continues where an earlier run or another replica stopped."""
        if request.denial:
            return
        token = await self._find(request) if request.token_id else None
        token = token and await bootstrap_tokens.claim_token(self.client, token, request.name, request.uid, utc_now())
        if token is None or token.claim is None:
            if not request.accepted:
                await self.decisions.refuse(request, request.requested_node, TOKEN_UNKNOWN)
        elif token.claim.uid != request.uid:
            why = f"The bootstrap token was already used for request {token.claim.csr}. A token is valid once."
            await self.decisions.refuse(request, token.node, why)
        else:
            self.claimed[token.id] = token
            await self._answer(request, token, token.claim)

    async def _find(self, request: CertificateRequest) -> BootstrapToken | None:
        token, node = await bootstrap_tokens.find_token(self.client, request.token_id), request.requested_node
        if token or not await self.handler.is_current_token(self.cluster, node, request.token_id):
            return token
        return await bootstrap_tokens.adopt_token(self.client, request.token_id, node, utc_now())

    async def clean_up(self) -> None:
        """Settles used tokens that timed out or whose outcome could not be reported yet."""
        await handle_each(list(self.claimed.values()), self._settle)

    async def sweep(self) -> None:
        """Finds tokens that expired, belong to no node, or were left by a stopped replica."""
        there = {token.id: token for token in await bootstrap_tokens.list_tokens(self.client)}
        # The cluster may have deleted an expired token already. It is then known from the previous sweep.
        known = (self.unused | there).items()
        self.unused = {id_: token for id_, token in known if id_ in there or utc_now() >= token.expires}
        await handle_each(list(self.unused.values()), self._check_token)

    async def _answer(self, request: CertificateRequest, token: BootstrapToken, claim: TokenClaim) -> None:
        why = "" if request.accepted else await self._objection(request, token)
        if why:
            if await self.decisions.refuse(request, token.node, why):
                await self._failed(token, why)
            return
        if not request.approved:
            await self.decisions.approve(request, f"First certificate of node {token.node}.")
        elif not request.accepted:
            await self.decisions.accept(request)
        await self._finish(token, claim, request)

    async def _objection(self, request: CertificateRequest, token: BootstrapToken) -> str:
        if why := check_csr(request, BootstrapExpectation(token.node, token.id, bootstrap_tokens.TOKEN_GROUP)):
            return why
        if why := await name_conflict(self.client, token.node):
            return why
        # This must be the last check, because it ends the node's config URL.
        if not await self.handler.on_token_csr(self.cluster, token.node, token.id, request.name):
            return f"Node {token.node} has another bootstrap token or was deleted."
        return ""

    async def _settle(self, token: BootstrapToken) -> None:
        if claim := token.claim:
            document = await self.client.find(f"{REQUESTS}/{claim.csr}")
            same = document and document["metadata"]["uid"] == claim.uid
            await self._finish(token, claim, CertificateRequest.read(document) if document and same else None)

    async def _finish(self, token: BootstrapToken, claim: TokenClaim, request: CertificateRequest | None) -> None:
        """Reports the outcome and revokes the token, if the request is finished."""
        if request and request.issued:
            await self.handler.on_token_certificate(self.cluster, token.node, token.id, claim.csr)
            await self._end(token)
        elif why := self._failure(claim, request):
            await self._failed(token, why)

    def _failure(self, claim: TokenClaim, request: CertificateRequest | None) -> str:
        if request and request.failed:
            return f"The cluster's signer rejected the request: {request.failed}"
        if request and request.denial:
            return request.denial
        if utc_now() - claim.at > self.grace:
            return f"No certificate was issued within {self.grace.total_seconds():.0f} s."
        return ""

    async def _check_token(self, token: BootstrapToken) -> None:
        if token.claim:
            self.claimed[token.id] = token
            self.unused.pop(token.id)
        elif utc_now() >= token.expires:
            await self._failed(token, TOKEN_EXPIRED)
        elif utc_now() - token.created > bootstrap_tokens.ORPHAN_AGE and not await self._expected(token):
            await self._end(token)

    async def _failed(self, token: BootstrapToken, why: str) -> None:
        # The failure of an old token does not affect a node that has a new one.
        if await self._expected(token):
            await self.handler.on_token_failed(self.cluster, token.node, token.id, why)
        await self._end(token)

    async def _expected(self, token: BootstrapToken) -> bool:
        return await self.handler.is_current_token(self.cluster, token.node, token.id)

    async def _end(self, token: BootstrapToken) -> None:
        await bootstrap_tokens.revoke_token(self.client, token.id)
        self.claimed.pop(token.id, None)
        self.unused.pop(token.id, None)


log = logging.getLogger(__name__)


@dataclass
class CsrDecisions:
    cluster: str
    client: KubeClient
    handler: ClusterEventHandler
    unreported: list[Callable[[], Awaitable[None]]] = field(default_factory=list)

    async def approve(self, request: CertificateRequest, why: str) -> None:
        """Approves the request. If another approver was faster, the next event shows its decision."""
        await self._decide(request, "Approved", APPROVED_BY_US, why)

    async def accept(self, request: CertificateRequest) -> None:
        """Marks a valid request that another approver has approved, because its token will be deleted."""
        await self.client.merge(f"{REQUESTS}/{request.name}", {"metadata": {"annotations": {ACCEPTED: request.uid}}})

    async def refuse(self, request: CertificateRequest, node: str, why: str) -> bool:
        """Denies the request and returns whether this replica did.

        If another approver was faster, an event follows.
        """
        if request.approved:
            why = await self._delete_approved(request, why)
        elif not await self._decide(request, "Denied", DENIED_BY_US, why):
            why = ""
        if why:
            log.warning("%s: denied request %s of %s. %s", self.cluster, request.name, request.user, why)
            await self._report(
                lambda: self.handler.on_csr_denied(self.cluster, node, request.token_id, request.name, why)
            )
        return bool(why)

    async def retry_reports(self) -> None:
        unreported, self.unreported = self.unreported, []
        for report in unreported:
            await self._report(report)

    async def _delete_approved(self, request: CertificateRequest, why: str) -> str:
        """Deletes an invalid request that another approver has approved, if possible before it is signed.

        Returns the reason to report, or an empty string if another replica reports it.
        """
        # Read again: another replica may have accepted and marked it before the token was deleted.
        document = await self.client.find(f"{REQUESTS}/{request.name}")
        if not document or (current := CertificateRequest.read(document)).uid != request.uid or current.accepted:
            return ""
        if not await self.client.delete(f"{REQUESTS}/{request.name}", {"uid": request.uid}):
            return ""
        late = " Its certificate was already issued and is valid until it expires." if current.issued else ""
        return f"{why} Another approver had approved it ({current.approval or 'no reason given'}).{late}"

    async def _decide(self, request: CertificateRequest, decision: str, reason: str, why: str) -> bool:
        condition = {"type": decision, "status": "True", "reason": reason, "message": why}
        status = request.document.get("status") or {}
        changed = {**status, "conditions": [*(status.get("conditions") or []), condition]}
        try:
            await self.client.replace(f"{REQUESTS}/{request.name}/approval", {**request.document, "status": changed})
        except ApiRefused as refusal:
            if refusal.status in {404, 409}:
                return False
            raise
        return True

    async def _report(self, report: Callable[[], Awaitable[None]]) -> None:
        """Reports a decision to the service, and queues the report for a retry if that fails."""
        try:
            await report()
        except Exception:
            log.warning(
                "%s: the decision could not be reported and is reported again later.", self.cluster, exc_info=True
            )
            self.unreported.append(report)
