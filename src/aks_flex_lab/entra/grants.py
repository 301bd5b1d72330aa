"""Verifies client assertions (certificate or federated credential), and issues and redeems authorization codes."""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jwt
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

from aks_flex_lab.entra import aadsts

if TYPE_CHECKING:
    from aks_flex_lab.entra.aadsts import EntraError
    from aks_flex_lab.entra.directory import EntraPrincipal, FederatedCredential


ASSERTION_TYPE = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
ALGORITHMS = ["RS256", "PS256"]
LEEWAY = 300


def check_assertion(principal: EntraPrincipal, assertion: str, audiences: list[str]) -> EntraError | None:
    """Returns the error of a client assertion, or None. `audiences` are the accepted audiences."""
    try:
        header = jwt.get_unverified_header(assertion)
        claims: dict[str, Any] = jwt.decode(assertion, options={"verify_signature": False})
    except jwt.PyJWTError:
        return aadsts.BAD_ASSERTION
    if claims.get("iss") == principal.client_id:
        return _by_certificate(principal, assertion, header, audiences)
    return _federated(principal, assertion, claims)


def _by_certificate(
    principal: EntraPrincipal, assertion: str, header: dict[str, Any], audiences: list[str]
) -> EntraError | None:
    found = next((each for each in map(_load_certificate, principal.certificates) if _is_named(each, header)), None)
    if found is None:
        return aadsts.UNKNOWN_CERTIFICATE
    if found.not_valid_after_utc.timestamp() < time.time():
        return aadsts.EXPIRED_CERTIFICATE
    key = found.public_key()
    return _check_signature(assertion, key, audiences, principal.client_id) if isinstance(key, RSAPublicKey) else None


def _federated(principal: EntraPrincipal, assertion: str, claims: dict[str, Any]) -> EntraError | None:
    known = [each for each in principal.federations if each.issuer == claims.get("iss")]
    if not known:
        return aadsts.UNKNOWN_ISSUER
    fitting: FederatedCredential | None = next((each for each in known if each.subject == claims.get("sub")), None)
    if fitting is None:
        return aadsts.UNKNOWN_SUBJECT
    key = x509.load_pem_x509_certificate(fitting.certificate.encode()).public_key()
    return _check_signature(assertion, key, [fitting.audience], fitting.subject)


def _check_signature(assertion: str, key: Any, audiences: list[str], subject: str) -> EntraError | None:
    try:
        claims = jwt.decode(
            assertion, key, ALGORITHMS, audience=audiences, leeway=LEEWAY, options={"require": ["exp", "aud", "sub"]}
        )
    except (jwt.ExpiredSignatureError, jwt.ImmatureSignatureError):
        return aadsts.OLD_ASSERTION
    except jwt.PyJWTError:
        return aadsts.BAD_ASSERTION
    return None if claims["sub"] == subject else aadsts.BAD_ASSERTION


def _is_named(certificate: x509.Certificate, header: dict[str, Any]) -> bool:
    """Returns whether the header contains a fingerprint of the certificate."""
    prints = {
        "x5t": certificate.fingerprint(hashes.SHA1()),  # noqa: S303 - a name, as Entra knows it
        "x5t#S256": certificate.fingerprint(hashes.SHA256()),
    }
    return any(
        str(header.get(name, "")).rstrip("=") == base64.urlsafe_b64encode(print_).rstrip(b"=").decode()
        for name, print_ in prints.items()
    )


def _load_certificate(pem: str) -> x509.Certificate:
    return x509.load_pem_x509_certificate(pem.encode())


CODE_SECONDS = 600.0


@dataclass(frozen=True)
class SignInGrant:
    """The user, application, redirect URI, nonce and code challenge of a sign-in."""

    user: str  # object id
    client: str  # application id
    redirect: str
    scope: str
    nonce: str
    challenge: str  # of PKCE with S256


class AuthorizationCodes:
    """Issues and redeems authorization codes. They are in memory only, and a restart loses them."""

    def __init__(self) -> None:
        self._grants: dict[str, tuple[float, SignInGrant]] = {}

    def issue(self, signed_in: SignInGrant) -> str:
        code = f"0.{secrets.token_urlsafe(48)}"
        self._grants[code] = (time.monotonic() + CODE_SECONDS, signed_in)
        return code

    def redeem(self, code: str, client: str, redirect: str, verifier: str) -> SignInGrant | EntraError:
        """Returns the grant of a code. The code is used up, also when the other parameters are invalid."""
        end, signed_in = self._grants.pop(code, (0.0, None))
        if signed_in is None or client.lower() != signed_in.client.lower():
            return aadsts.BAD_CODE
        if redirect != signed_in.redirect:
            return aadsts.OTHER_REDIRECT
        if not hmac.compare_digest(pkce_challenge(verifier), signed_in.challenge):
            return aadsts.WRONG_VERIFIER
        return signed_in if time.monotonic() < end else aadsts.OLD_CODE


def pkce_challenge(verifier: str) -> str:
    digest = hashlib.sha256(verifier.encode()).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
