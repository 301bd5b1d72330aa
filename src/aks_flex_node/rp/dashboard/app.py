"""The addresses of the pages, and what stands before each: who it is, whether a form is ours, and what goes wrong."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from urllib.parse import quote

from starlette.responses import Response
from starlette.routing import Route

from aks_flex_node.errors import FlexError
from aks_flex_node.rp.arm import errors
from aks_flex_node.rp.arm.errors import ArmError
from aks_flex_node.rp.dashboard import pages, visits
from aks_flex_node.rp.dashboard.pages import ASSETS
from aks_flex_node.rp.dashboard.visits import COOKIE, LIVE, Visit
from aks_flex_node.rp.serving import requests

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.requests import Request as Incoming

    from aks_flex_node.rp.dashboard.audits import Audits
    from aks_flex_node.rp.dashboard.creating import Creating
    from aks_flex_node.rp.dashboard.editing import Editing
    from aks_flex_node.rp.dashboard.fleet import Fleet
    from aks_flex_node.rp.dashboard.joining_commands import Joining
    from aks_flex_node.rp.dashboard.nodes import Nodes
    from aks_flex_node.rp.dashboard.pages import Pages
    from aks_flex_node.rp.dashboard.removing import Removing
    from aks_flex_node.rp.dashboard.renewing import Renewing
    from aks_flex_node.rp.dashboard.sessions import Sessions, SignedIn
    from aks_flex_node.rp.dashboard.signing_in import SigningIn

    Page = Callable[[Visit], Awaitable[Response]]
    Answer = Callable[[Incoming], Awaitable[Response]]

NODE = "/ui/nodes/{subscription}/{group}/{cluster}/{node}"

log = logging.getLogger("aks_flex_node.rp.pages")


@dataclass(frozen=True)
class Dashboard:
    pages: Pages
    sessions: Sessions
    signing_in: SigningIn
    fleet: Fleet
    nodes: Nodes
    editing: Editing
    renewing: Renewing
    removing: Removing
    creating: Creating
    joining: Joining
    audits: Audits

    def routes(self) -> list[Route]:
        signing = self.signing_in
        return [
            *self._open("/ui/sign-in", signing.ask),
            *self._open("/ui/sign-in/key", signing.by_key, "POST"),
            *self._open("/ui/sign-in/entra", signing.begin_entra),
            *self._open("/ui/sign-in/entra/done", signing.end_entra),
            *self._open("/ui/assets/{mark}/{name}", self._asset),
            *self._closed("/ui/sign-out", post=signing.sign_out),
            *self._closed("/", self.fleet.show),
            *self._closed(NODE, self.nodes.show),
            *self._closed(f"{NODE}/edit", self.editing.ask, self.editing.save),
            *self._closed(f"{NODE}/token", self.renewing.ask, self.renewing.renew),
            *self._closed(f"{NODE}/delete", self.removing.ask, self.removing.remove),
            *self._closed(f"{NODE}/joining", self.joining.show),
            *self._closed("/ui/create", self.creating.show, self.creating.take),
            *self._closed("/ui/audit", self.audits.show),
            *self._closed("/ui/audit.csv", self.audits.export_csv),
            *self._closed("/ui/audit.json", self.audits.export_json),
            *self._open("/ui/{rest:path}", self._nothing),
        ]

    def _open(self, path: str, answer: Answer, method: str = "GET") -> list[Route]:
        """For anybody."""
        return [Route(path, self._guarded(answer), methods=[method])]

    def _closed(self, path: str, get: Page | None = None, post: Page | None = None) -> list[Route]:
        """For those who are signed in; what changes something only by a form of our own pages."""
        routes = [Route(path, self._guarded(self._signed_in(get)), methods=["GET"])] if get else []
        return [*routes, *([Route(path, self._guarded(self._formed(post)), methods=["POST"])] if post else [])]

    def _signed_in(self, page: Page) -> Answer:
        async def answer(incoming: Incoming) -> Response:
            by_hand = LIVE not in incoming.headers
            session = await self.sessions.find(incoming.cookies.get(COOKIE, ""), by_hand=by_hand)
            if session is None:
                return self._sign_in_first(incoming)
            return await page(await self._visit(incoming, session))

        return answer

    async def _visit(self, incoming: Incoming, session: SignedIn) -> Visit:
        may_create = bool(await self.fleet.scopes.clusters(session.caller, "write"))
        return Visit(incoming, requests.fresh_id(), session, may_create)

    def _sign_in_first(self, incoming: Incoming) -> Response:
        if LIVE in incoming.headers:  # a script, which takes the whole page there
            return Response(status_code=401, headers=self.pages.headers)
        asked = incoming.url.path + (f"?{incoming.url.query}" if incoming.url.query else "")
        back = asked if incoming.method == "GET" else "/"
        return visits.go("/ui/sign-in" + (f"?next={quote(back)}" if back != "/" else ""))

    def _formed(self, page: Page) -> Answer:
        async def answer(incoming: Incoming) -> Response:
            session = await self.sessions.find(incoming.cookies.get(COOKIE, ""))
            if session is None:
                return self._sign_in_first(incoming)
            form = await visits.posted(incoming)
            if not session.sent(form.pop("csrf", "")):
                raise visits.foreign()
            return await page(replace(await self._visit(incoming, session), form=form))

        return answer

    def _guarded(self, answer: Answer) -> Answer:
        """Whatever happens, there is a page."""

        async def guarded(incoming: Incoming) -> Response:
            try:
                return await answer(incoming)
            except ArmError as error:
                return self._problem(error)
            except FlexError as error:
                return self._problem(requests.failure(error, requests.fresh_id()))
            except Exception:
                request_id = requests.fresh_id()
                log.exception("A page failed.", extra={"request": request_id})
                message = f"The service made a mistake. Its log says more at the id {request_id}."
                return self._problem(ArmError(500, "InternalServerError", message))

        return guarded

    def _problem(self, error: ArmError) -> Response:
        response = self.pages.show("problem", status=error.status, error=error)
        response.headers.update(error.headers)
        return response

    async def _asset(self, incoming: Incoming) -> Response:
        name, mark = incoming.path_params["name"], incoming.path_params["mark"]
        if name not in ASSETS or incoming.url.path != pages.asset_url(name):
            raise errors.ArmError(404, "NotFound", f"There is no {name[:80]} of {mark[:80]} here.")
        headers = {"Cache-Control": "public, max-age=31536000, immutable", "X-Content-Type-Options": "nosniff"}
        return Response(pages.asset(name), 200, headers, media_type=ASSETS[name])

    async def _nothing(self, incoming: Incoming) -> Response:
        raise ArmError(404, "NotFound", f"There is no page at {incoming.url.path[:200]}.")
