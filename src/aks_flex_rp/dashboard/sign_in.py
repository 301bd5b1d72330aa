"""Sign-in and sign-out: with the local admin key, or with Entra ID (authorization code flow with PKCE, by MSAL)."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import time
import warnings
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from aks_flex_rp import private_files
from aks_flex_rp.api import http_messages
from aks_flex_rp.arm import errors
from aks_flex_rp.arm.errors import ArmError
from aks_flex_rp.auth.admin_key import ADMIN_CALLER
from aks_flex_rp.auth.auth_errors import Unauthenticated
from aks_flex_rp.auth.auth_settings import ENTRA_AUTHORITY, AuthSettings, TenantSettings
from aks_flex_rp.auth.token_verifier import TokenVerifier
from aks_flex_rp.counted_events import CountedEvents
from aks_flex_rp.dashboard import page_request
from aks_flex_rp.dashboard.page_request import SESSION_COOKIE, START_COOKIE, local_path, redirect
from aks_flex_rp.dashboard.sessions import SignInRefused, VerifiedUser
from aks_flex_rp.store.model import AuditAction, AuditEvent, AuditOutcome

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from msal import ConfidentialClientApplication  # type: ignore[import-untyped]
    from requests import Session
    from starlette.requests import Request as Incoming
    from starlette.responses import Response

    from aks_flex_rp.auth.admin_key import AdminKey
    from aks_flex_rp.auth.rate_limit import RateLimiter
    from aks_flex_rp.crypto.encryption import Sealer
    from aks_flex_rp.dashboard.page_renderer import PageRenderer
    from aks_flex_rp.dashboard.page_request import PageRequest
    from aks_flex_rp.dashboard.sessions import SessionManager
    from aks_flex_rp.settings import EntraSignInSettings
    from aks_flex_rp.store.base import Store


FLOW_COOKIE = "__Host-aks-flex-flow"
FLOW_SECONDS = 600.0
MAX_RETURN_PATH = 2000  # characters; a cookie is limited to 4 KiB
ENTRA_TIMEOUT = 10.0  # seconds for one request to Entra ID
FLOW = "sign-in under way"  # what a sealed flow is for
DONE = "/ui/sign-in/entra/done"
# Errors about the user. Others are about the application, such as an expired client secret.
USER_REFUSED = frozenset({"invalid_grant", "interaction_required", "login_required", "consent_required"})


class EntraSignIn:
    """Signs users in with one Entra ID application of one tenant. MSAL blocks, so it runs in threads."""

    def __init__(
        self, settings: EntraSignInSettings, authority: str, ca_file: str | None, origin: str, sealer: Sealer
    ) -> None:
        self._settings, self._sealer = settings, sealer
        self.authority, self._ca_file = authority, ca_file
        self._redirect = origin + DONE
        metadata = f"{authority}/{settings.tenant_id}/v2.0/.well-known/openid-configuration"
        tenant = TenantSettings(
            tenant_id=settings.tenant_id, metadata_url=metadata, audiences=(settings.client_id,), ca_file=ca_file
        )
        self._tokens = TokenVerifier(AuthSettings(tenants=(tenant,)))

    async def start(self, after: str) -> tuple[str, str]:
        """Returns the URL to redirect the browser to, and the encrypted state for a cookie.

        `after` is the path to return to after sign-in.
        """
        flow = await asyncio.to_thread(self._begin)
        where = flow.pop("auth_uri")
        state = {
            "flow": flow,
            "after": after if len(after) < MAX_RETURN_PATH else "/",
            "until": time.time() + FLOW_SECONDS,
        }
        sealed = self._sealer.seal(json.dumps(state).encode(), FLOW)
        return where, base64.urlsafe_b64encode(sealed).decode()

    async def finish(self, sealed: str, response: Mapping[str, str]) -> tuple[VerifiedUser, str]:
        """Redeems the authorization code with the state of the cookie. Returns the user and the path to return to."""
        flow, after = self._opened(sealed)
        result = await asyncio.to_thread(self._redeem, flow, dict(response))
        return await self._user(result, _failed), after

    async def confirm(self, refresh_token: str) -> VerifiedUser:
        """Redeems a refresh token, which Entra ID refuses for a disabled or deleted user, and after a revocation.

        Raises SignInRefused then, or ArmError if Entra ID cannot say it.
        """
        result = await asyncio.to_thread(self._refresh, refresh_token)
        return await self._user(result, SignInRefused)

    async def _user(self, result: Mapping[str, Any], refused: Callable[[str], Exception]) -> VerifiedUser:
        try:
            caller = await self._tokens.caller(f"Bearer {result['id_token']}")
        except Unauthenticated as error:
            log.warning("Entra ID returned an invalid ID token: %s", error.message)
            raise refused("The ID token from Entra ID could not be verified.") from None
        return VerifiedUser(caller, str(result.get("refresh_token") or ""))

    def _begin(self) -> dict[str, Any]:
        with warnings.catch_warnings():
            # MSAL recommends form_post, but a browser does not send our cookies with a POST from another site.
            warnings.filterwarnings("ignore", "response_mode='form_post'")
            flow: dict[str, Any] = self._application().initiate_auth_code_flow([], redirect_uri=self._redirect)
        return flow

    def _redeem(self, flow: dict[str, Any], response: dict[str, str]) -> dict[str, Any]:
        application = self._application()
        try:
            with self._reached():
                result: dict[str, Any] = application.acquire_token_by_auth_code_flow(flow, response)
        except (ValueError, RuntimeError):  # the state or nonce does not match
            raise _failed("The response from Entra ID does not belong to the sign-in of this browser.") from None
        if "id_token" not in result:
            log.warning("Entra ID denied a sign-in: %s", _reason(result))
            raise _failed(f"Entra ID denied the sign-in: {_reason(result)}")
        return result

    def _refresh(self, refresh_token: str) -> dict[str, Any]:
        with self._reached(ValueError):
            result: dict[str, Any] = self._application().acquire_token_by_refresh_token(refresh_token, [])
        if "id_token" in result:
            return result
        log.warning("Entra ID did not confirm a sign-in: %s", _reason(result))
        if result.get("error") in USER_REFUSED:
            raise SignInRefused(f"Entra ID denied the sign-in: {_reason(result)}")
        raise _unavailable(f"The service cannot check the sign-in with Entra ID: {_reason(result)}")

    def _opened(self, sealed: str) -> tuple[dict[str, Any], str]:
        try:
            found = json.loads(self._sealer.open(base64.urlsafe_b64decode(sealed), FLOW))
        except Exception:  # the cookie is untrusted
            raise _failed("No sign-in is in progress in this browser, or it has expired.") from None
        if found["until"] < time.time():
            raise _failed("The sign-in has expired.")
        return found["flow"], found["after"]

    def _application(self) -> ConfidentialClientApplication:
        """Creates a client for each sign-in, so that a replaced secret is used immediately."""
        from msal import ConfidentialClientApplication  # noqa: PLC0415 - not needed without Entra ID

        with self._reached(ValueError, RuntimeError):  # the constructor requests metadata from the authority
            return ConfidentialClientApplication(
                self._settings.client_id,
                client_credential=self._credential(),
                authority=f"{self.authority}/{self._settings.tenant_id}",
                instance_discovery=self.authority == ENTRA_AUTHORITY,
                http_client=_verifying(self._ca_file),
            )

    @contextmanager
    def _reached(self, *others: type[Exception]) -> Iterator[None]:
        """Translates the errors of MSAL, and these others, of a request to Entra ID that got no answer."""
        from msal.exceptions import MsalError  # type: ignore[import-untyped] # noqa: PLC0415

        try:
            yield
        except (OSError, MsalError, *others) as error:
            log.warning("%s is unreachable: %s", self.authority, error)
            raise _unavailable(f"The service cannot reach Entra ID ({self.authority}).") from None

    def _credential(self) -> Any:
        if certificate := self._settings.client_certificate_file:
            pem = private_files.read(certificate).decode()
            return {"private_key": pem, "public_certificate": pem}
        secret = self._settings.client_secret_file
        return private_files.read(secret).decode().strip() if secret else None


def _reason(result: Mapping[str, Any]) -> str:
    """Returns the first line of an error from Entra ID; the next ones are for its support."""
    reason = str(result.get("error_description") or result.get("error") or "no reason given.")
    return reason.splitlines()[0][:300]


def _failed(why: str) -> ArmError:
    return ArmError(401, "SignInFailed", f"{why} Sign in again.")


def _unavailable(why: str) -> ArmError:
    message = f"{why} Try again in a minute."
    return ArmError(503, "ServiceUnavailable", message, headers={"Retry-After": "60"})


def _verifying(ca_file: str | None) -> Session:
    """Returns an HTTP session with limits that trusts the configured CA. `requests` would prefer one from the
    environment.
    """
    from requests import Session  # noqa: PLC0415

    from aks_flex_node.azure.transport import BoundedAdapter  # noqa: PLC0415

    class Verifying(Session):
        def request(self, *arguments: Any, **more: Any) -> Any:
            more |= {"timeout": ENTRA_TIMEOUT, "allow_redirects": False, **({"verify": ca_file} if ca_file else {})}
            return super().request(*arguments, **more)

    session = Verifying()
    session.mount("https://", BoundedAdapter())
    return session


START_SECONDS = 3600.0
WRONG_KEY = "The admin key is incorrect."
SESSION_ENDED = "Your session has ended: it was idle for too long, or its sign-in is no longer valid. Sign in again."

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SignInPage:
    """Serves sign-in and sign-out."""

    pages: PageRenderer
    sessions: SessionManager
    store: Store
    limits: RateLimiter
    key: AdminKey | None  # None when sign-in with the admin key is disabled
    key_file: str
    entra: EntraSignIn | None
    failures: CountedEvents = field(default_factory=CountedEvents)  # failed sign-ins

    async def ask(self, incoming: Incoming) -> Response:
        ended = SESSION_ENDED if incoming.cookies.get(SESSION_COOKIE) else ""  # a sign-out deletes the cookie
        return self._form(incoming, local_path(incoming.query_params.get("next", "/")), ended)

    def _form(self, incoming: Incoming, after: str, problem: str = "", status: int = 200) -> Response:
        token = incoming.cookies.get(START_COOKIE) or page_request.start_token()
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
        page_request.set_cookie(page, START_COOKIE, token, START_SECONDS)
        return page

    async def by_key(self, incoming: Incoming) -> Response:
        form = await page_request.read_form(incoming)
        if not page_request.started_here(incoming, form.get("token", "")):
            raise page_request.foreign_form()
        after = local_path(form.get("next", "/"))
        self._limit(incoming)
        if self.key is None or not self.key.matches(form.get("key", "").strip().encode("utf-8", "replace")):
            await self._record_failure(incoming)
            return self._form(incoming, after, WRONG_KEY, 403)
        return await self._start_session(incoming, VerifiedUser(ADMIN_CALLER), after)

    async def begin_entra(self, incoming: Incoming) -> Response:
        if self.entra is None:
            raise errors.unknown_path()
        self._limit(incoming)
        where, sealed = await self.entra.start(local_path(incoming.query_params.get("next", "/")))
        answer = redirect(where)
        page_request.set_cookie(answer, FLOW_COOKIE, sealed, FLOW_SECONDS)
        return answer

    async def end_entra(self, incoming: Incoming) -> Response:
        if self.entra is None:
            raise errors.unknown_path()
        self._limit(incoming)
        try:
            user, after = await self.entra.finish(incoming.cookies.get(FLOW_COOKIE, ""), incoming.query_params)
        except errors.ArmError as error:
            if error.status == 401:
                await self._record_failure(incoming)
            raise
        answer = await self._start_session(incoming, user, local_path(after))
        page_request.delete_cookie(answer, FLOW_COOKIE)
        return answer

    def _limit(self, incoming: Incoming) -> None:
        """Limits sign-ins by client address, before any request to Entra ID or the store."""
        if wait := self.limits.acquire(f"sign-in {http_messages.client_address(incoming)}", "write"):
            raise errors.too_many_requests(wait)

    async def _start_session(self, incoming: Incoming, user: VerifiedUser, after: str) -> Response:
        """Starts a session with a new secret, and ends the previous session of the browser."""
        if earlier := incoming.cookies.get(SESSION_COOKIE):
            await self.sessions.end(earlier)
        session = await self.sessions.begin(*user)
        source, request = http_messages.client_address(incoming), http_messages.new_request_id()
        await self.store.record(
            AuditEvent(
                time.time(), user.caller.name, AuditAction.SIGN_IN, "/", source, request, who_id=user.caller.id
            )
        )
        answer = redirect(after)
        page_request.set_cookie(answer, SESSION_COOKIE, session.secret, self.sessions.seconds)
        page_request.delete_cookie(answer, START_COOKIE)
        return answer

    async def sign_out(self, visit: PageRequest) -> Response:
        await self.sessions.end(visit.session.secret)
        answer = redirect("/ui/sign-in")
        page_request.delete_cookie(answer, SESSION_COOKIE)
        return answer

    async def _record_failure(self, incoming: Incoming) -> None:
        source, request = http_messages.client_address(incoming), http_messages.new_request_id()
        denied = AuditOutcome.DENIED
        event = AuditEvent(time.time(), "somebody", AuditAction.SIGN_IN, "/", source, request, denied)
        await self.failures.record(self.store, event)
