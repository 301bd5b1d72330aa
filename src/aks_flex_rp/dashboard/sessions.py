"""Dashboard sessions: the cookie holds a random secret, the store its hash and the user.

A session ends at its expiry, after idleness, on sign-out, and when its credential is no longer valid: a new admin key
ends the sessions of the old one, and Entra ID must confirm a user again every CHECK_SECONDS. Every sign-in creates a
new secret, which prevents session fixation.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import secrets
import time
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from aks_flex_rp.arm.errors import ArmError
from aks_flex_rp.callers import Caller, CallerKind
from aks_flex_rp.store.model import AuditAction, AuditEvent, AuditOutcome, UserSession

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aks_flex_rp.crypto.encryption import Sealer
    from aks_flex_rp.settings import DashboardSettings
    from aks_flex_rp.store.base import Store

USED_SECONDS = 60.0  # the last use is written at most once in this time
CHECK_SECONDS = 900.0  # after which Entra ID must confirm the user of a session again


class VerifiedUser(NamedTuple):
    """A user that Entra ID has just confirmed."""

    caller: Caller
    refresh_token: str = ""  # for the next check; empty if Entra ID issued none


class SignInRefused(Exception):  # noqa: N818 - a result
    """Raised when Entra ID no longer accepts the sign-in of a user, for example because the user is disabled."""


@dataclass(frozen=True)
class SignedInUser:
    """A valid session."""

    caller: Caller
    secret: str  # the value of the cookie

    @property
    def form_token(self) -> str:
        """The CSRF token of the session's forms."""
        return hmac.new(self.secret.encode(), b"form", hashlib.sha256).hexdigest()

    def sent(self, form_token: str) -> bool:
        """Whether a posted CSRF token is the one of this session."""
        return hmac.compare_digest(self.form_token.encode(), form_token.encode("utf-8", "replace"))

    def __repr__(self) -> str:
        return f"SignedIn({self.caller.name}, ***)"


class SessionManager:
    """Creates, finds and ends sessions."""

    def __init__(
        self,
        store: Store,
        settings: DashboardSettings,
        key_mark: Callable[[], str],
        sealer: Sealer,
        confirm: Callable[[str], Awaitable[VerifiedUser]] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`key_mark` returns the fingerprint of the current admin key. `confirm` redeems a refresh token."""
        self._store, self._sealer, self._confirm, self.clock = store, sealer, confirm, clock
        self._checks: dict[str, asyncio.Task[Caller | None]] = {}  # in progress, by session
        self._key_mark = key_mark if settings.admin_key else lambda: ""
        self._entra_mark = f"{settings.entra.tenant_id}/{settings.entra.client_id}" if settings.entra else ""
        self.seconds = settings.session_hours * 3600
        self._idle = settings.idle_minutes * 60

    async def begin(self, caller: Caller, refresh_token: str = "") -> SignedInUser:
        """Creates a session with a new secret."""
        secret, now = secrets.token_urlsafe(32), self.clock()
        name = _hash(secret)
        times = (now + self.seconds, now, now)
        sealed = self._sealed(name, refresh_token)
        await self._store.put_session(UserSession(name, _document(caller), self._proof(caller), *times, sealed))
        return SignedInUser(caller, secret)

    async def find(self, secret: str, *, by_hand: bool = True, check: bool = True) -> SignedInUser | None:
        """Returns the valid session of a secret, or None.

        Automatic refreshes (`by_hand` is false) do not extend the session, so that an open page expires. Raises
        ArmError if Entra ID does not confirm the user, or cannot be reached; without `check`, it is not requested.
        """
        if not secret or len(secret) > 128:
            return None
        now, name = self.clock(), _hash(secret)
        found = await self._store.session(name, now)
        if found is None or now - found.used > self._idle:
            return None
        caller = msgspec.convert(found.caller, Caller)
        if not found.proof or found.proof != self._proof(caller):
            return None
        confirmed: Caller | None = caller
        if caller.kind is not CallerKind.KEY and now - found.checked >= CHECK_SECONDS:
            confirmed = await self._checked(found) if check else None
        if confirmed is None:
            return None
        if by_hand and now - found.used > USED_SECONDS:
            await self._store.use_session(name, now)
        return SignedInUser(confirmed, secret)

    async def _checked(self, session: UserSession) -> Caller | None:
        """Checks a session once for all requests that wait for it. A cancelled request does not stop the check."""
        running = self._checks.get(session.id)
        if running is None:
            running = self._checks[session.id] = asyncio.create_task(self._check(session))
            running.add_done_callback(lambda done: self._end_check(session.id, done))
        return await asyncio.shield(running)

    def _end_check(self, name: str, done: asyncio.Task[Caller | None]) -> None:
        del self._checks[name]
        if not done.cancelled():
            done.exception()  # all requests may have been cancelled, and nothing else reads it

    async def _check(self, session: UserSession) -> Caller | None:
        before, now = msgspec.convert(session.caller, Caller), self.clock()
        try:
            if self._confirm is None or not session.refresh:
                raise SignInRefused("Entra ID issued no refresh token for it.")
            sealed = base64.b64decode(session.refresh)
            user = await self._confirm(self._sealer.open(sealed, _refresh_seal_context(session.id)).decode())
            if user.caller.identity != before.identity:
                raise SignInRefused("Entra ID returned another user.")
        except SignInRefused as error:
            await self._store.end_session(session.id)
            event = AuditEvent(now, before.name, AuditAction.SIGN_IN, "/", outcome=AuditOutcome.DENIED)
            await self._store.record(replace(event, detail={"reason": str(error)}, who_id=before.id))
            message = f"Your session has ended, because the sign-in could not be confirmed: {error} Sign in again."
            raise ArmError(401, "SessionEnded", message) from None
        refresh = self._sealed(session.id, user.refresh_token) if user.refresh_token else session.refresh
        confirmed = replace(session, caller=_document(user.caller), checked=now, refresh=refresh)
        return user.caller if await self._store.confirm_session(confirmed) else None

    def _sealed(self, name: str, refresh_token: str) -> str:
        if not refresh_token:
            return ""
        return base64.b64encode(self._sealer.seal(refresh_token.encode(), _refresh_seal_context(name))).decode()

    def _proof(self, caller: Caller) -> str:
        """Identifies the current credential for this kind of caller; empty when its sign-in is disabled."""
        return self._key_mark() if caller.kind is CallerKind.KEY else self._entra_mark

    async def end(self, secret: str) -> None:
        await self._store.end_session(_hash(secret))

    async def sweep(self) -> int:
        """Deletes expired and idle sessions, and returns their number."""
        now = self.clock()
        return await self._store.sweep_sessions(now, now - self._idle)


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "replace")).hexdigest()


def _refresh_seal_context(name: str) -> str:
    return f"refresh token of session {name}"


def _document(caller: Caller) -> dict[str, Any]:
    return {**asdict(caller), "ids": sorted(caller.ids), "own": sorted(caller.own)}
