"""Dashboard sessions: the cookie holds a random secret, the store its hash and the user.

A session ends at its expiry, after idleness, on sign-out, and when its credential is no longer valid: a new admin key
ends the sessions of the old one. Every sign-in creates a new secret, which prevents session fixation.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aks_flex_rp.callers import Caller, CallerKind
from aks_flex_rp.store.model import UserSession

if TYPE_CHECKING:
    from collections.abc import Callable

    from aks_flex_rp.settings import DashboardSettings
    from aks_flex_rp.store.protocol import Store

USED_SECONDS = 60.0  # the last use is written at most once in this time


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
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`key_mark` returns the fingerprint of the current admin key."""
        self._store, self._clock = store, clock
        self._key_mark = key_mark if settings.admin_key else lambda: ""
        self._entra_mark = f"{settings.entra.tenant_id}/{settings.entra.client_id}" if settings.entra else ""
        self.seconds = settings.session_hours * 3600
        self._idle = settings.idle_minutes * 60

    async def begin(self, caller: Caller) -> SignedInUser:
        """Creates a session with a new secret."""
        secret, now = secrets.token_urlsafe(32), self._clock()
        session = UserSession(_hash(secret), _document(caller), self._proof(caller), now + self.seconds, now)
        await self._store.put_session(session)
        return SignedInUser(caller, secret)

    async def find(self, secret: str, *, by_hand: bool = True) -> SignedInUser | None:
        """Returns the valid session of a secret, or None.

        Automatic refreshes (`by_hand` is false) do not extend the session, so that an open page expires.
        """
        if not secret or len(secret) > 128:
            return None
        now, name = self._clock(), _hash(secret)
        found = await self._store.session(name, now)
        if found is None or now - found.used > self._idle:
            return None
        caller = _caller(found.caller)
        if not found.proof or found.proof != self._proof(caller):
            return None
        if by_hand and now - found.used > USED_SECONDS:
            await self._store.use_session(name, now)
        return SignedInUser(caller, secret)

    def _proof(self, caller: Caller) -> str:
        """Identifies the current credential for this kind of caller; empty when its sign-in is disabled."""
        return self._key_mark() if caller.kind is CallerKind.KEY else self._entra_mark

    async def end(self, secret: str) -> None:
        await self._store.end_session(_hash(secret))

    async def sweep(self) -> int:
        """Deletes expired and idle sessions, and returns their number."""
        now = self._clock()
        return await self._store.sweep_sessions(now, now - self._idle)


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "replace")).hexdigest()


def _document(caller: Caller) -> dict[str, Any]:
    return {
        "id": caller.id,
        "name": caller.name,
        "kind": caller.kind.value,
        "tenant": caller.tenant,
        "ids": sorted(caller.ids),
        "own": sorted(caller.own),
    }


def _caller(document: dict[str, Any]) -> Caller:
    return Caller(
        **{
            **document,
            "kind": CallerKind(document["kind"]),
            "ids": frozenset(document["ids"]),
            "own": frozenset(document["own"]),
        }
    )
