"""What a token must be before it is believed, and who the caller is then."""

from __future__ import annotations

import base64
import datetime
import json
from typing import TYPE_CHECKING, Any

import jwt
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

from aks_flex_node.rp.auth.refusals import Unauthenticated
from aks_flex_node.rp.callers import Caller

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from jwt import PyJWK

    from aks_flex_node.rp.auth.settings import TenantSettings
    from aks_flex_node.rp.callers import Kind

RSA = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
CURVES = {"secp256r1": "ES256", "secp384r1": "ES384", "secp521r1": "ES512"}
SMALLEST_RSA = 2048
CAUSES = {
    jwt.ImmatureSignatureError: "is not valid yet. Check the clocks.",
    jwt.InvalidAlgorithmError: "is not signed as its key signs.",
    jwt.InvalidSignatureError: "has a signature that is not valid.",
}


def peek(token: str) -> tuple[str, str]:
    """(tenant, key id) as the token claims them, to find the key with which to check the claim.

    Without the library, which looks at all of a token each time: after a restart, every node shows a new one at once.
    """
    try:
        header, claims = (json.loads(_decoded(part)) for part in token.split(".")[:2])
        return str(claims.get("tid", "")).lower(), str(header.get("kid", ""))
    except (AttributeError, ValueError, RecursionError):
        raise Unauthenticated("InvalidAuthenticationToken", "The access token is not a JSON web token.") from None


def _decoded(part: str) -> bytes:
    return base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))


def algorithms(key: PyJWK) -> tuple[str, ...]:
    """Those that the key itself is made for, whatever a token says. None of them works with a shared secret."""
    public = key.key
    if isinstance(public, RSAPublicKey):
        return RSA if public.key_size >= SMALLEST_RSA else ()
    if isinstance(public, EllipticCurvePublicKey) and public.curve.name in CURVES:
        return (CURVES[public.curve.name],)
    return ()


def verified(
    token: str, key: PyJWK, tenant: TenantSettings, issuers: frozenset[str], skew: float
) -> Mapping[str, Any]:
    """The claims of a token that holds in every respect; what does not hold is named."""
    try:
        claims: dict[str, Any] = jwt.decode(
            token,
            key.key,
            algorithms=list(algorithms(key)),
            audience=list(tenant.audiences),
            issuer=list(issuers),
            leeway=skew,
            options={"require": ["exp", "iss", "aud", "tid", "oid"], "strict_aud": False},
        )
    except jwt.PyJWTError as error:
        raise refusal(error, tenant) from None
    except (ValueError, OverflowError, RecursionError):  # numbers and shapes that the library does not expect
        raise Unauthenticated("InvalidAuthenticationToken", "The access token cannot be read.") from None
    return claims


def refusal(error: jwt.PyJWTError, tenant: TenantSettings) -> Unauthenticated:
    """The library's error in ARM's words."""
    if isinstance(error, jwt.ExpiredSignatureError):
        now = datetime.datetime.now(datetime.timezone.utc)
        message = f"The access token has expired. The time here is {now:%Y-%m-%dT%H:%M:%SZ}."
        return Unauthenticated("ExpiredAuthenticationToken", message)
    if isinstance(error, jwt.InvalidAudienceError):
        allowed = ", ".join(f"'{each}'" for each in tenant.audiences)
        message = f"The access token has been obtained for a wrong audience. Allowed are: {allowed}."
        return Unauthenticated("InvalidAuthenticationTokenAudience", message)
    if isinstance(error, jwt.InvalidIssuerError):
        return Unauthenticated("InvalidAuthenticationTokenTenant", "The access token is from a wrong issuer.")
    if isinstance(error, jwt.MissingRequiredClaimError):
        return Unauthenticated("InvalidAuthenticationToken", f"The access token has no claim `{error.claim}`.")
    cause = next((words for kind, words in CAUSES.items() if isinstance(error, kind)), "is not valid.")
    return Unauthenticated("InvalidAuthenticationToken", f"The access token {cause}")


def identified(claims: Mapping[str, Any]) -> Caller:
    """Who a verified token speaks for."""
    application = str(claims.get("appid") or claims.get("azp") or "")
    kind = _kind(claims)
    # A user's token names the program that the user sits at; that program's rights are not the user's.
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


def _kind(claims: Mapping[str, Any]) -> Kind:
    if claims.get("xms_mirid"):
        return "ManagedIdentity"
    # Tokens of version 2 may lack `idtyp`. An application's speaks for nobody but itself, and has no user's scopes.
    alone = "idtyp" not in claims and "scp" not in claims and claims.get("sub") == claims.get("oid")
    return "Application" if claims.get("idtyp") == "app" or alone else "User"


def _name(claims: Mapping[str, Any], application: str) -> str:
    told = ("upn", "preferred_username", "unique_name", "app_displayname")
    mine = str(claims.get("xms_mirid") or "").rpartition("/")[2]
    return next((str(claims[each]) for each in told if claims.get(each)), mine or application or str(claims["oid"]))
