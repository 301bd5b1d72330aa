"""Signing in and out: with the local admin key, or with Entra ID."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aks_flex_node.rp.arm import errors
from aks_flex_node.rp.auth.keys import ADMIN
from aks_flex_node.rp.dashboard import visits
from aks_flex_node.rp.dashboard.entra import FLOW_COOKIE, FLOW_SECONDS
from aks_flex_node.rp.dashboard.visits import COOKIE, START_COOKIE, go, local
from aks_flex_node.rp.serving import requests
from aks_flex_node.rp.store.store import Event

if TYPE_CHECKING:
    from starlette.requests import Request as Incoming
    from starlette.responses import Response

    from aks_flex_node.rp.auth.keys import AdminKey
    from aks_flex_node.rp.auth.limits import Limits
    from aks_flex_node.rp.callers import Caller
    from aks_flex_node.rp.dashboard.entra import Entra
    from aks_flex_node.rp.dashboard.pages import Pages
    from aks_flex_node.rp.dashboard.sessions import Sessions
    from aks_flex_node.rp.dashboard.visits import Visit
    from aks_flex_node.rp.store.store import Store

START_SECONDS = 3600.0
WRONG_KEY = "This is not the admin key of this service."

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SigningIn:
    pages: Pages
    sessions: Sessions
    store: Store
    limits: Limits
    key: AdminKey | None  # None when people may not sign in with it
    key_file: str
    entra: Entra | None

    async def ask(self, incoming: Incoming) -> Response:
        return self._form(incoming, local(incoming.query_params.get("next", "/")))

    def _form(self, incoming: Incoming, after: str, problem: str = "", status: int = 200) -> Response:
        token = incoming.cookies.get(START_COOKIE) or visits.start_token()
        by_key, by_entra = self.key is not None, self.entra is not None
        page = self.pages.show(
            "sign_in",
            status=status,
            token=token,
            after=after,
            problem=problem,
            by_key=by_key,
            by_entra=by_entra,
            key_file=self.key_file,
        )
        visits.keep(page, START_COOKIE, token, START_SECONDS)
        return page

    async def by_key(self, incoming: Incoming) -> Response:
        form = await visits.posted(incoming)
        if not visits.started_here(incoming, form.get("token", "")):
            raise visits.foreign()
        after = local(form.get("next", "/"))
        self._limit(incoming)
        if self.key is None or not self.key.opens(form.get("key", "").strip().encode("utf-8", "replace")):
            await self._record(incoming, "somebody", "denied")
            return self._form(incoming, after, WRONG_KEY, 403)
        return await self._let_in(incoming, ADMIN, after)

    async def begin_entra(self, incoming: Incoming) -> Response:
        if self.entra is None:
            raise errors.not_here()
        self._limit(incoming)
        where, kept = await self.entra.start(local(incoming.query_params.get("next", "/")))
        answer = go(where)
        visits.keep(answer, FLOW_COOKIE, kept, FLOW_SECONDS)
        return answer

    async def end_entra(self, incoming: Incoming) -> Response:
        if self.entra is None:
            raise errors.not_here()
        self._limit(incoming)
        try:
            caller, after = await self.entra.finish(incoming.cookies.get(FLOW_COOKIE, ""), incoming.query_params)
        except errors.ArmError as error:
            if error.status == 401:
                await self._record(incoming, "somebody", "denied")
            raise
        answer = await self._let_in(incoming, caller, local(after))
        visits.drop(answer, FLOW_COOKIE)
        return answer

    def _limit(self, incoming: Incoming) -> None:
        """By address, before anything is asked of Entra or of the store: nobody is known yet."""
        if wait := self.limits.take(f"sign-in {requests.source(incoming)}", "write"):
            raise errors.too_many(wait)

    async def _let_in(self, incoming: Incoming, caller: Caller, after: str) -> Response:
        """With a new secret, whatever the browser had before."""
        if earlier := incoming.cookies.get(COOKIE):
            await self.sessions.end(earlier)
        session = await self.sessions.begin(caller)
        await self._record(incoming, caller.name, "ok")
        answer = go(after)
        visits.keep(answer, COOKIE, session.secret, self.sessions.seconds)
        visits.drop(answer, START_COOKIE)
        return answer

    async def sign_out(self, visit: Visit) -> Response:
        await self.sessions.end(visit.session.secret)
        answer = go("/ui/sign-in")
        visits.drop(answer, COOKIE)
        return answer

    async def _record(self, incoming: Incoming, who: str, outcome: str) -> None:
        source, request = requests.source(incoming), requests.fresh_id()
        await self.store.record(Event(time.time(), who, "signIn", "/", source, request, outcome))
