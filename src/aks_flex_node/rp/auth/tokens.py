"""From what a request shows to who asks. A token is verified once; after that, until it expires, it is looked up."""

from __future__ import annotations

import hashlib
import time
from typing import TYPE_CHECKING

from aks_flex_node.rp.auth.authorities import Authority, fetching
from aks_flex_node.rp.auth.claims import identified, peek, verified
from aks_flex_node.rp.auth.keys import ADMIN, PREFIX
from aks_flex_node.rp.auth.refusals import Unauthenticated

if TYPE_CHECKING:
    from collections.abc import Callable

    from aks_flex_node.rp.auth.authorities import Fetch
    from aks_flex_node.rp.auth.keys import AdminKey
    from aks_flex_node.rp.auth.settings import AuthSettings, TenantSettings
    from aks_flex_node.rp.callers import Caller

SKEW_SECONDS = 300.0  # by how much clocks may differ
REMEMBERED = 200_000  # tokens, so that a hundred thousand nodes may each renew theirs
LONGEST = 16_384  # of a header; Entra's tokens with 200 groups stay far below


class Tokens:
    """Belongs to one event loop."""

    def __init__(
        self,
        settings: AuthSettings,
        key: AdminKey | None = None,
        *,
        fetch: Callable[[TenantSettings], Fetch] = lambda tenant: fetching(tenant.ca_file),
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        skew: float = SKEW_SECONDS,
        remembered: int = REMEMBERED,
    ) -> None:
        self._authorities = {each.tenant_id: Authority(each, fetch(each), monotonic) for each in settings.tenants}
        self._sign_in = settings.tenants[0].sign_in if settings.tenants else ""
        self._key = key
        self._clock = clock
        self._skew = skew
        self._room = remembered
        self._seen: dict[bytes, tuple[float, Caller]] = {}  # by the header's hash: (until when, who)

    def known(self, authorization: str | bytes) -> Caller | None:
        """Who shows a header that was verified before and still holds; None when `caller` has to look."""
        shown = authorization if isinstance(authorization, bytes) else authorization.encode("latin-1", "replace")
        if shown[7 : 7 + len(PREFIX)] == PREFIX.encode():  # never remembered, since it can be replaced at any time
            return self._admin(shown)
        found = self._seen.get(hashlib.sha256(shown).digest())
        return found[1] if found and found[0] > self._clock() else None

    async def caller(self, authorization: str) -> Caller:
        """Who asks. Unauthenticated when that is not proven; AuthorityAway when it cannot be checked now."""
        found = self.known(authorization)
        if found:
            return found
        try:
            token = self._bearer(authorization)
            return await self._verify(token, hashlib.sha256(authorization.encode("latin-1", "replace")).digest())
        except Unauthenticated as refused:
            refused.sign_in = refused.sign_in or self._sign_in
            raise

    def _admin(self, shown: bytes) -> Caller | None:
        scheme, _, key = shown.partition(b" ")
        opens = scheme.lower() == b"bearer" and self._key is not None and self._key.opens(key.strip())
        return ADMIN if opens else None

    @staticmethod
    def _bearer(authorization: str) -> str:
        scheme, _, token = authorization.strip().partition(" ")
        if not authorization.strip():
            raise Unauthenticated("AuthenticationFailed", "Authentication failed. There is no Authorization header.")
        if scheme.lower() != "bearer" or not token.strip():
            raise Unauthenticated(
                "AuthenticationFailed", "Authentication failed. The Authorization header must be `Bearer <token>`."
            )
        if token.startswith(PREFIX):
            raise Unauthenticated("InvalidAuthenticationToken", "The admin key is not valid.")
        if len(token) > LONGEST:
            raise Unauthenticated("InvalidAuthenticationToken", "The access token is too long.")
        return token.strip()

    async def _verify(self, token: str, digest: bytes) -> Caller:
        tenant, key_id = peek(token)
        authority = self._authorities.get(tenant)
        if authority is None:
            raise Unauthenticated("InvalidAuthenticationTokenTenant", "The access token is from another tenant.")
        key = await authority.key(key_id)
        if key is None:
            raise Unauthenticated(
                "InvalidAuthenticationToken",
                "The access token is signed with a key that its tenant does not show.",
                authority.tenant.sign_in,
            )
        try:
            claims = verified(token, key, authority.tenant, authority.issuers, self._skew)
        except Unauthenticated as refused:
            refused.sign_in = authority.tenant.sign_in
            raise
        caller = identified(claims)
        self._remember(digest, float(claims["exp"]) + self._skew, caller)
        return caller

    def _remember(self, digest: bytes, until: float, caller: Caller) -> None:
        """The oldest make room; whoever still shows one of them is verified again, and that is all."""
        now = self._clock()
        while self._seen:
            oldest = next(iter(self._seen))
            if len(self._seen) < self._room and self._seen[oldest][0] > now:
                break
            del self._seen[oldest]
        self._seen[digest] = (until, caller)
