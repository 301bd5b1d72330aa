"""Routes of the dashboard with session check, CSRF check and error pages, and the function that builds it."""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from urllib.parse import quote

from starlette.responses import Response
from starlette.routing import Route

from aks_flex_node.errors import FlexError
from aks_flex_rp.api import http_messages
from aks_flex_rp.arm import errors
from aks_flex_rp.arm.errors import ArmError
from aks_flex_rp.auth.roles import Operation
from aks_flex_rp.dashboard import page_renderer, page_request
from aks_flex_rp.dashboard.audit_page import AuditPage
from aks_flex_rp.dashboard.enrolment_pages import EnrolmentPages
from aks_flex_rp.dashboard.fleet_page import FleetCounter, FleetPage
from aks_flex_rp.dashboard.join_page import ConfigUrlCookie, JoinPage
from aks_flex_rp.dashboard.node_actions import NodeActions
from aks_flex_rp.dashboard.node_page import NodeDetailPage
from aks_flex_rp.dashboard.page_renderer import ASSETS, HelpPage, PageRenderer
from aks_flex_rp.dashboard.page_request import LIVE_HEADER, SESSION_COOKIE, PageRequest
from aks_flex_rp.dashboard.pool_pages import PoolPages
from aks_flex_rp.dashboard.rollout_pages import RolloutPages
from aks_flex_rp.dashboard.scopes import DashboardScopes
from aks_flex_rp.dashboard.sessions import SessionManager
from aks_flex_rp.dashboard.settings_pages import NodeFormPage, PoolFormPage
from aks_flex_rp.dashboard.sign_in import EntraSignIn, SignInPage

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from starlette.requests import Request as Incoming

    from aks_flex_rp.dashboard.sessions import SignedInUser

    Page = Callable[[PageRequest], Awaitable[Response]]
    Answer = Callable[[Incoming], Awaitable[Response]]
    from aks_flex_rp.api.arm_routes import ArmRoutes
    from aks_flex_rp.auth.admin_key import AdminKey
    from aks_flex_rp.crypto.encryption import Sealer
    from aks_flex_rp.settings import ServiceSettings


POOL_PATH = "/ui/pools/{subscription}/{group}/{cluster}/{pool}"
NODE_PATH = "/ui/nodes/{subscription}/{group}/{cluster}/{node}"

log = logging.getLogger("aks_flex_rp.pages")


@dataclass(frozen=True)
class Dashboard:
    """All pages of the dashboard and their routes."""

    pages: PageRenderer
    sessions: SessionManager
    scopes: DashboardScopes
    sign_in_page: SignInPage
    arm: ArmRoutes
    url_cookie: ConfigUrlCookie

    def routes(self) -> list[Route]:
        shared = (self.pages, self.scopes, self.arm)
        sign_in, actions = self.sign_in_page, NodeActions(*shared, self.url_cookie)
        node_form, pool_form = NodeFormPage(*shared, self.url_cookie), PoolFormPage(*shared)
        pools, enrolments = PoolPages(*shared), EnrolmentPages(*shared)
        rollouts, audit = RolloutPages(*shared), AuditPage(*shared)
        # By path: the pages of GET and POST.
        closed: dict[str, tuple[Page | None, ...]] = {
            "/ui/sign-out": (None, sign_in.sign_out),
            "/": (FleetPage(*shared, FleetCounter(self.arm.nodes.commands.context.store)).show,),
            NODE_PATH: (NodeDetailPage(*shared).show,),
            f"{NODE_PATH}/edit": (node_form.ask, node_form.save),
            f"{NODE_PATH}/token": (actions.ask_token, actions.renew_token),
            f"{NODE_PATH}/delete": (actions.ask_delete, actions.delete),
            f"{NODE_PATH}/revoke-key": (actions.ask_revoke_key, actions.revoke_key),
            f"{NODE_PATH}/resume": (None, actions.resume),
            f"{NODE_PATH}/joining": (JoinPage(*shared, self.url_cookie).show,),
            "/ui/create": (node_form.ask_new, node_form.create),
            "/ui/pools": (pools.show_all,),
            "/ui/pools/new": (pool_form.ask_new, pool_form.create),
            POOL_PATH: (pools.show,),
            f"{POOL_PATH}/edit": (pool_form.ask, pool_form.save),
            f"{POOL_PATH}/delete": (pools.ask_delete, pools.delete),
            f"{POOL_PATH}/apply": (None, pools.apply),
            f"{POOL_PATH}/enrolments": (enrolments.show_all, enrolments.create),
            f"{POOL_PATH}/enrolments/{{enrolment}}": (enrolments.show,),
            f"{POOL_PATH}/enrolments/{{enrolment}}/revoke": (None, enrolments.revoke),
            f"{POOL_PATH}/enrolments/{{enrolment}}/decide": (None, enrolments.decide),
            f"{POOL_PATH}/start-rollout": (rollouts.ask_start, rollouts.start),
            f"{POOL_PATH}/rollouts/{{rollout}}": (rollouts.show,),
            f"{POOL_PATH}/rollouts/{{rollout}}/{{action}}": (rollouts.ask, rollouts.act),
            f"{POOL_PATH}/allow-revision/{{revision}}": (rollouts.ask_allow, rollouts.allow),
            f"{NODE_PATH}/release": (enrolments.ask_release, enrolments.release),
            "/ui/audit": (audit.show,),
            "/ui/audit.csv": (audit.export_csv,),
            "/ui/audit.json": (audit.export_json,),
            "/ui/help/{name}": (HelpPage(self.pages).show,),
        }
        return [
            self._route("/ui/sign-in", sign_in.ask),
            self._route("/ui/sign-in/key", sign_in.by_key, "POST"),
            self._route("/ui/sign-in/entra", sign_in.begin_entra),
            self._route("/ui/sign-in/entra/done", sign_in.end_entra),
            self._route("/ui/assets/{mark}/{name}", self._asset),
            *(route for path, pages in closed.items() for route in self._closed(path, *pages)),
            self._route("/ui/{rest:path}", self._not_found),
        ]

    def _route(self, path: str, answer: Answer, method: str = "GET") -> Route:
        """Returns a route whose errors are pages. Without more, it requires no session."""
        return Route(path, self._guarded(answer), methods=[method])

    def _closed(self, path: str, get: Page | None, post: Page | None = None) -> Iterator[Route]:
        """Yields routes that require a session. A POST must also carry the session's CSRF token."""
        if get:
            yield self._route(path, self._signed_in(get))
        if post:
            yield self._route(path, self._with_csrf_check(post), "POST")

    def _signed_in(self, page: Page) -> Answer:
        async def answer(incoming: Incoming) -> Response:
            by_hand = LIVE_HEADER not in incoming.headers
            session = await self.sessions.find(incoming.cookies.get(SESSION_COOKIE, ""), by_hand=by_hand)
            if session is None:
                return self._sign_in_first(incoming)
            return await page(await self._page_request(incoming, session))

        return answer

    async def _page_request(self, incoming: Incoming, session: SignedInUser) -> PageRequest:
        may_create = bool(await self.scopes.clusters(session.caller, Operation.WRITE))
        return PageRequest(incoming, http_messages.new_request_id(), session, may_create)

    def _sign_in_first(self, incoming: Incoming) -> Response:
        if LIVE_HEADER in incoming.headers:  # from the refresh script, which then reloads the page
            return Response(status_code=401, headers=self.pages.headers)
        target = incoming.url.path + (f"?{incoming.url.query}" if incoming.url.query else "")
        back = target if incoming.method == "GET" else "/"
        return page_request.redirect("/ui/sign-in" + (f"?next={quote(back)}" if back != "/" else ""))

    def _with_csrf_check(self, page: Page) -> Answer:
        async def answer(incoming: Incoming) -> Response:
            session = await self.sessions.find(incoming.cookies.get(SESSION_COOKIE, ""))
            if session is None:
                return self._sign_in_first(incoming)
            form = await page_request.read_form(incoming)
            if not session.sent(form.pop("csrf", "")):
                raise page_request.foreign_form()
            return await page(replace(await self._page_request(incoming, session), form=form))

        return answer

    def _guarded(self, answer: Answer) -> Answer:
        """Renders every error of a handler as an error page."""

        async def guarded(incoming: Incoming) -> Response:
            try:
                return await answer(incoming)
            except ArmError as error:
                return self._problem(error, await self._visitor(incoming))
            except FlexError as error:
                problem = http_messages.arm_error(error, http_messages.new_request_id())
                return self._problem(problem, await self._visitor(incoming))
            except Exception:
                request_id = http_messages.new_request_id()
                log.exception("Rendering a page failed.", extra={"request": request_id})
                message = f"Internal error. Search the service log for the request ID {request_id}."
                return self._problem(ArmError(500, "InternalServerError", message))

        return guarded

    async def _visitor(self, incoming: Incoming) -> PageRequest | None:
        """Returns the request of a signed-in user, whose error page keeps the navigation."""
        with suppress(FlexError, OSError):  # the error page may be about the database
            secret = incoming.cookies.get(SESSION_COOKIE, "")
            session = await self.sessions.find(secret, by_hand=False, check=False)
            return await self._page_request(incoming, session) if session else None
        return None

    def _problem(self, error: ArmError, page_request: PageRequest | None = None) -> Response:
        response = self.pages.show("problem", page_request, status=error.status, error=error)
        response.headers.update(error.headers)
        return response

    async def _asset(self, incoming: Incoming) -> Response:
        name, mark = incoming.path_params["name"], incoming.path_params["mark"]
        if name not in ASSETS or incoming.url.path != page_renderer.asset_url(name):
            raise errors.ArmError(404, "NotFound", f"The asset {mark[:80]}/{name[:80]} does not exist.")
        headers = {"Cache-Control": "public, max-age=31536000, immutable", "X-Content-Type-Options": "nosniff"}
        return Response(page_renderer.asset(name), 200, headers, media_type=ASSETS[name])

    async def _not_found(self, incoming: Incoming) -> Response:
        raise ArmError(404, "NotFound", f"The page {incoming.url.path[:200]} does not exist.")


def open_dashboard(settings: ServiceSettings, arm: ArmRoutes, key: AdminKey, sealer: Sealer) -> Dashboard:
    """Builds the dashboard from the service settings and the routes of the API."""
    store, entra = arm.nodes.commands.context.store, None
    if settings.dashboard.entra:
        ca_file = str(settings.azure.ca_file) if settings.azure.ca_file else None
        entra = EntraSignIn(settings.dashboard.entra, settings.azure.authority, ca_file, settings.origin, sealer)
    pages = PageRenderer([entra.authority] if entra else ())
    confirm = entra.confirm if entra else None
    sessions = SessionManager(store, settings.dashboard, lambda: key.fingerprint, sealer, confirm)
    by_key = key if settings.dashboard.admin_key else None
    limits, key_file = arm.authorizer.limits, str(settings.admin_key_file)
    sign_in_page = SignInPage(pages, sessions, store, limits, by_key, key_file, entra)
    return Dashboard(pages, sessions, DashboardScopes(arm.authorizer), sign_in_page, arm, ConfigUrlCookie(sealer))
