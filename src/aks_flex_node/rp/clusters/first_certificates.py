"""The first certificate of a node, for which it asks with its token.

A token is good for one request, whatever becomes of that. Which one was the first is written into the token's Secret
(see tokens.py), so several replicas may watch the same cluster. The Secret goes when it has ended and the service
knows how: not earlier, because a kubelet watches its request with the token, and because a service that is restarted
in between finds in the Secret what it still has to tell.
"""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING

from aks_flex_node.rp.clusters import tokens
from aks_flex_node.rp.clusters.nodes import taken
from aks_flex_node.rp.clusters.requests import REQUESTS, Joining, Request, judge
from aks_flex_node.rp.clusters.watches import each

if TYPE_CHECKING:
    from datetime import timedelta

    from aks_flex_node.rp.clusters.clients import Client
    from aks_flex_node.rp.clusters.decisions import Decisions
    from aks_flex_node.rp.clusters.listener import Listener
    from aks_flex_node.rp.clusters.tokens import Claim, Token

UNKNOWN = "The token that it was sent with was used already, or was revoked."
EXPIRED = "The token expired before it was used."


def now() -> datetime:
    return datetime.now(timezone.utc)


class FirstCertificates:
    def __init__(
        self, cluster: str, client: Client, listener: Listener, decisions: Decisions, grace: timedelta
    ) -> None:
        self._cluster = cluster
        self._client = client
        self._listener = listener
        self._decisions = decisions
        self._grace = grace
        self._claimed: dict[str, Token] = {}  # used, and it is not told yet how that ended
        self._unused: dict[str, Token] = {}  # as the last sweep saw them

    async def decide(self, request: Request) -> None:
        """Step by step, and from wherever an earlier run or another replica has stopped."""
        if request.denial:
            return
        token = await tokens.find(self._client, request.token_id) if request.token_id else None
        token = token and await tokens.claim(self._client, token, request.name, request.uid, now())
        if token is None or token.claim is None:
            if not request.accepted:
                await self._decisions.refuse(request, request.asked_for, UNKNOWN)
        elif token.claim.uid != request.uid:
            why = f"The token was already used by request {token.claim.csr}, and a token is for one request."
            await self._decisions.refuse(request, token.node, why)
        else:
            self._claimed[token.id] = token
            await self._answer(request, token, token.claim)

    async def tidy(self) -> None:
        """From time to time: those whose time is over, and those whose end could not be told."""
        await each(list(self._claimed.values()), self._settle)

    async def sweep(self) -> None:
        """Now and then: tokens that have expired, or are no node's any more, or whose replica has ended."""
        there = {token.id: token for token in await tokens.ours(self._client)}
        # The cluster may be faster to remove one that has expired; then it is known from the sweep before.
        known = (self._unused | there).items()
        self._unused = {id_: token for id_, token in known if id_ in there or now() >= token.expires}
        await each(list(self._unused.values()), self._look_at)

    async def _answer(self, request: Request, token: Token, claim: Claim) -> None:
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

    async def _objection(self, request: Request, token: Token) -> str:
        verdict = judge(request.document, Joining(token.node, token.id, tokens.GROUP))
        if not verdict.allowed:
            return verdict.why
        if why := await taken(self._client, token.node):
            return why
        # The last question, because asking it ends the node's config URL.
        if not await self._listener.attempted(self._cluster, token.node, token.id, request.name):
            return f"Node {token.node} has another token now, or is gone."
        return ""

    async def _settle(self, token: Token) -> None:
        if claim := token.claim:
            document = await self._client.find(f"{REQUESTS}/{claim.csr}")
            same = document and document["metadata"]["uid"] == claim.uid
            await self._finish(token, claim, Request.read(document) if document and same else None)

    async def _finish(self, token: Token, claim: Claim, request: Request | None) -> None:
        """If it has ended."""
        if request and request.issued:
            await self._listener.issued(self._cluster, token.node, token.id, claim.csr)
            await self._end(token)
        elif why := self._failure(claim, request):
            await self._failed(token, why)

    def _failure(self, claim: Claim, request: Request | None) -> str:
        if request and request.failed:
            return f"The cluster's signer refused it: {request.failed}"
        if request and request.denial:
            return request.denial
        if now() - claim.at > self._grace:
            return f"No certificate was issued within {self._grace.total_seconds():.0f} s."
        return ""

    async def _look_at(self, token: Token) -> None:
        if token.claim:
            self._claimed[token.id] = token
            self._unused.pop(token.id)
        elif now() >= token.expires:
            await self._failed(token, EXPIRED)
        elif now() - token.created > tokens.ORPHAN_AGE and not await self._expected(token):
            await self._end(token)

    async def _failed(self, token: Token, why: str) -> None:
        # A node that has another token does not suffer from what became of the old one.
        if await self._expected(token):
            await self._listener.failed(self._cluster, token.node, token.id, why)
        await self._end(token)

    async def _expected(self, token: Token) -> bool:
        return await self._listener.expects(self._cluster, token.node, token.id)

    async def _end(self, token: Token) -> None:
        await tokens.revoke(self._client, token.id)
        self._claimed.pop(token.id, None)
        self._unused.pop(token.id, None)
