"""Verifies bearer tokens and the admin key, and returns the caller. A verified token is cached until it expires."""

from __future__ import annotations

import datetime
import hashlib
import json
import time
from typing import TYPE_CHECKING, Any

import jwt
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

from aks_flex_rp.auth.admin_key import ADMIN_CALLER, ADMIN_KEY_PREFIX
from aks_flex_rp.auth.auth_errors import Unauthenticated
from aks_flex_rp.auth.node_assertions import decoded_part, is_assertion, verify_assertion
from aks_flex_rp.auth.tenant_keys import TenantKeys, https_fetcher
from aks_flex_rp.callers import Caller, CallerKind

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping

    from jwt import PyJWK

    from aks_flex_rp.auth.admin_key import AdminKey
    from aks_flex_rp.auth.auth_settings import AuthSettings, TenantSettings
    from aks_flex_rp.auth.node_assertions import KnownNode, SignedAssertion
    from aks_flex_rp.auth.tenant_keys import Fetch

RSA_ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
CURVE_ALGORITHMS = {"secp256r1": "ES256", "secp384r1": "ES384", "secp521r1": "ES512"}
SMALLEST_RSA = 2048
CAUSES = {
    jwt.ImmatureSignatureError: "is not valid yet. Check the clocks.",
    jwt.InvalidAlgorithmError: "is signed with an algorithm that its key does not allow.",
    jwt.InvalidSignatureError: "has an invalid signature.",
}


def unverified_ids(token: str) -> tuple[str, str]:
    """Returns the tenant and the key ID that the token claims, to find the key that verifies it.

    Does not use the JWT library, which parses the whole token: after a restart, every node presents a token at the
    same time.
    """
    try:
        header, claims = (json.loads(decoded_part(part)) for part in token.split(".")[:2])
        return str(claims.get("tid", "")).lower(), str(header.get("kid", ""))
    except (AttributeError, ValueError, RecursionError):
        raise Unauthenticated("InvalidAuthenticationToken", "The access token is not a JSON web token.") from None


def algorithms(key: PyJWK) -> tuple[str, ...]:
    """Returns the algorithms that the key type allows, independent of the token.

    None of them uses a shared secret.
    """
    public = key.key
    if isinstance(public, RSAPublicKey):
        return RSA_ALGORITHMS if public.key_size >= SMALLEST_RSA else ()
    if isinstance(public, EllipticCurvePublicKey) and public.curve.name in CURVE_ALGORITHMS:
        return (CURVE_ALGORITHMS[public.curve.name],)
    return ()


def verify_claims(token: str, key: PyJWK, tenant: TenantSettings, issuers: frozenset[str]) -> Mapping[str, Any]:
    """Verifies a token completely and returns its claims. Raises Unauthenticated with the reason."""
    try:
        claims: dict[str, Any] = jwt.decode(
            token,
            key.key,
            algorithms=list(algorithms(key)),
            audience=list(tenant.audiences),
            issuer=list(issuers),
            leeway=SKEW_SECONDS,
            options={"require": ["exp", "iss", "aud", "tid", "oid"], "strict_aud": False},
        )
    except jwt.PyJWTError as error:
        raise token_error(error, tenant) from None
    except (ValueError, OverflowError, RecursionError):  # values that the library does not expect
        raise Unauthenticated("InvalidAuthenticationToken", "The access token cannot be parsed.") from None
    named = claims["aud"]
    if not set(named if isinstance(named, list) else [named]) <= set(tenant.audiences):
        raise token_error(jwt.InvalidAudienceError(), tenant)  # it would also be valid somewhere else
    return claims


def token_error(error: jwt.PyJWTError, tenant: TenantSettings) -> Unauthenticated:
    """Translates an error of the JWT library to an ARM error."""
    if isinstance(error, jwt.ExpiredSignatureError):
        now = datetime.datetime.now(datetime.timezone.utc)
        message = f"The access token has expired. The current time is {now:%Y-%m-%dT%H:%M:%SZ}."
        return Unauthenticated("ExpiredAuthenticationToken", message)
    if isinstance(error, jwt.InvalidAudienceError):
        allowed = ", ".join(f"'{each}'" for each in tenant.audiences)
        message = f"The access token has an invalid audience. Allowed audiences: {allowed}."
        return Unauthenticated("InvalidAuthenticationTokenAudience", message)
    if isinstance(error, jwt.InvalidIssuerError):
        return Unauthenticated("InvalidAuthenticationTokenTenant", "The access token has an invalid issuer.")
    if isinstance(error, jwt.MissingRequiredClaimError):
        return Unauthenticated("InvalidAuthenticationToken", f"The access token has no claim `{error.claim}`.")
    cause = next((text for kind, text in CAUSES.items() if isinstance(error, kind)), "is not valid.")
    return Unauthenticated("InvalidAuthenticationToken", f"The access token {cause}")


def caller_from_claims(claims: Mapping[str, Any]) -> Caller:
    """Returns the caller that a verified token identifies."""
    application = str(claims.get("appid") or claims.get("azp") or "")
    kind = _kind(claims)
    # A user's token also names the client application, whose permissions are not the user's.
    own = _lower([str(claims["oid"]), application if kind != "User" else ""])
    groups = claims.get("groups")
    return Caller(
        str(claims["oid"]).lower(),
        _name(claims, application if kind != "User" else ""),
        kind,
        str(claims["tid"]).lower(),
        own | _lower(groups if isinstance(groups, list) else ()),
        own | _lower([claims.get("xms_mirid")]),
    )


def _lower(ids: Iterable[object]) -> frozenset[str]:
    return frozenset(str(each).lower() for each in ids if each)


def _kind(claims: Mapping[str, Any]) -> CallerKind:
    if claims.get("xms_mirid"):
        return CallerKind.MANAGED_IDENTITY
    # Version 2 tokens may lack `idtyp`. In an application's token, subject and object are the same and `scp` is
    # missing.
    alone = "idtyp" not in claims and "scp" not in claims and claims.get("sub") == claims.get("oid")
    return CallerKind.APPLICATION if claims.get("idtyp") == "app" or alone else CallerKind.USER


def _name(claims: Mapping[str, Any], application: str) -> str:
    claims_by_preference = ("upn", "preferred_username", "unique_name", "app_displayname")
    mine = str(claims.get("xms_mirid") or "").rpartition("/")[2]
    return next(
        (str(claims[each]) for each in claims_by_preference if claims.get(each)),
        mine or application or str(claims["oid"]),
    )


SKEW_SECONDS = 300.0  # allowed clock difference
MAX_CACHED_TOKENS = 200_000  # entries; a hundred thousand nodes may each have an old and a new token
MAX_HEADER_LENGTH = 16_384  # characters; Entra's tokens with 200 groups are much shorter


async def _no_node(_assertion: SignedAssertion) -> KnownNode | None:
    return None


class TokenVerifier:
    """Verifies the Authorization header of requests. Must be used from one event loop only."""

    def __init__(
        self,
        settings: AuthSettings,
        key: AdminKey | None = None,
        *,
        fetch: Callable[[TenantSettings], Fetch] = lambda tenant: https_fetcher(tenant.ca_file),
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        remembered: int = MAX_CACHED_TOKENS,
        find_node: Callable[[SignedAssertion], Awaitable[KnownNode | None]] = _no_node,
    ) -> None:
        tenants = settings.accepted_tenants
        self._authorities = {each.tenant_id: TenantKeys(each, fetch(each), monotonic) for each in tenants}
        self._first = tenants[0] if tenants else None
        self._key = key
        self._clock = clock
        self._max_cached = remembered
        self._seen: dict[bytes, tuple[float, Caller]] = {}  # by hash of the header: (expiry, caller)
        self._find_node = find_node
        self._assertions: dict[str, bytes] = {}  # hash of the last header by node key: a node uses one at a time

    def cached(self, authorization: str | bytes) -> Caller | None:
        """Returns the caller of a header that was verified before and is still valid, or None if it must be
        verified.
        """
        shown = authorization if isinstance(authorization, bytes) else authorization.encode("latin-1", "replace")
        if (
            shown[7 : 7 + len(ADMIN_KEY_PREFIX)] == ADMIN_KEY_PREFIX.encode()
        ):  # never cached, because it can be replaced at any time
            scheme, _, key = shown.partition(b" ")
            opens = scheme.lower() == b"bearer" and self._key is not None and self._key.matches(key.strip())
            return ADMIN_CALLER if opens else None
        found = self._seen.get(hashlib.sha256(shown).digest())
        return found[1] if found and found[0] > self._clock() else None

    async def caller(self, authorization: str, source: str = "") -> Caller:
        """Returns the caller. `source` is the address of the client, whose failures are limited.

        Raises Unauthenticated if the credentials are invalid, TenantUnreachable if they cannot be verified now, or
        TooManyFailures.
        """
        found = self.cached(authorization)
        if found:
            return found
        try:
            token = self._bearer(authorization)
            return await self._verify(
                token, source, hashlib.sha256(authorization.encode("latin-1", "replace")).digest()
            )
        except Unauthenticated as refused:
            if self._first and not refused.sign_in:
                refused.sign_in, refused.resource = self._first.sign_in, self._first.audiences[0]
            raise

    @staticmethod
    def _bearer(authorization: str) -> str:
        scheme, _, token = authorization.strip().partition(" ")
        if not authorization.strip():
            raise Unauthenticated(
                "AuthenticationFailed", "Authentication failed. The Authorization header is missing."
            )
        if scheme.lower() != "bearer" or not token.strip():
            raise Unauthenticated(
                "AuthenticationFailed", "Authentication failed. The Authorization header must be `Bearer <token>`."
            )
        if token.startswith(ADMIN_KEY_PREFIX):
            raise Unauthenticated("InvalidAuthenticationToken", "The admin key is not valid.")
        if len(token) > MAX_HEADER_LENGTH:
            raise Unauthenticated("InvalidAuthenticationToken", "The access token is too long.")
        return token.strip()

    async def _verify(self, token: str, source: str, digest: bytes) -> Caller:
        if is_assertion(token):
            caller, until = await verify_assertion(token, self._find_node, self._clock, source)
            self._seen.pop(self._assertions.pop(caller.id, b""), None)
            self._remember(digest, until, caller)
            self._assertions[caller.id] = digest
            return caller
        tenant, key_id = unverified_ids(token)
        authority = self._authorities.get(tenant)
        if authority is None:
            raise Unauthenticated("InvalidAuthenticationTokenTenant", "The access token is from another tenant.")
        key = await authority.key(key_id)
        try:
            if key is None:
                message = "The access token is signed with a key that its tenant does not publish."
                raise Unauthenticated("InvalidAuthenticationToken", message)
            claims = verify_claims(token, key, authority.tenant, authority.issuers)
        except Unauthenticated as refused:
            refused.sign_in, refused.resource = authority.tenant.sign_in, authority.tenant.audiences[0]
            raise
        caller = caller_from_claims(claims)
        self._remember(digest, float(claims["exp"]) + SKEW_SECONDS, caller)
        return caller

    def _remember(self, digest: bytes, until: float, caller: Caller) -> None:
        """Caches a verified token. The oldest entries are removed; their tokens are verified again."""
        now = self._clock()
        while self._seen:
            oldest = next(iter(self._seen))
            if len(self._seen) < self._max_cached and self._seen[oldest][0] > now:
                break
            _, ended = self._seen.pop(oldest)
            self._assertions.pop(ended.id, None)
        self._seen[digest] = (until, caller)
