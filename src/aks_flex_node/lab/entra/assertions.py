"""Programs that show who they are by a signed assertion: by a certificate of theirs, or by somebody they trust."""

from __future__ import annotations

import base64
import time
from typing import TYPE_CHECKING, Any

import jwt
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

from aks_flex_node.lab.entra import answers

if TYPE_CHECKING:
    from aks_flex_node.lab.entra.answers import Refusal
    from aks_flex_node.lab.entra.directory import Federation, Principal

TYPE = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
ALGORITHMS = ["RS256", "PS256"]
LEEWAY = 300


def judge(principal: Principal, assertion: str, audiences: list[str]) -> Refusal | None:
    """What is wrong with an assertion for that principal. `audiences` are the names that we have ourselves."""
    try:
        header = jwt.get_unverified_header(assertion)
        told: dict[str, Any] = jwt.decode(assertion, options={"verify_signature": False})
    except jwt.PyJWTError:
        return answers.BAD_ASSERTION
    if told.get("iss") == principal.client_id:
        return _by_certificate(principal, assertion, header, audiences)
    return _federated(principal, assertion, told)


def _by_certificate(
    principal: Principal, assertion: str, header: dict[str, Any], audiences: list[str]
) -> Refusal | None:
    found = next((each for each in map(_read, principal.certificates) if _is_named(each, header)), None)
    if found is None:
        return answers.UNKNOWN_CERTIFICATE
    if found.not_valid_after_utc.timestamp() < time.time():
        return answers.EXPIRED_CERTIFICATE
    key = found.public_key()
    return _verified(assertion, key, audiences, principal.client_id) if isinstance(key, RSAPublicKey) else None


def _federated(principal: Principal, assertion: str, told: dict[str, Any]) -> Refusal | None:
    known = [each for each in principal.federations if each.issuer == told.get("iss")]
    if not known:
        return answers.UNKNOWN_ISSUER
    fitting: Federation | None = next((each for each in known if each.subject == told.get("sub")), None)
    if fitting is None:
        return answers.UNKNOWN_SUBJECT
    key = x509.load_pem_x509_certificate(fitting.certificate.encode()).public_key()
    return _verified(assertion, key, [fitting.audience], fitting.subject)


def _verified(assertion: str, key: Any, audiences: list[str], subject: str) -> Refusal | None:
    try:
        told = jwt.decode(
            assertion, key, ALGORITHMS, audience=audiences, leeway=LEEWAY, options={"require": ["exp", "aud", "sub"]}
        )
    except (jwt.ExpiredSignatureError, jwt.ImmatureSignatureError):
        return answers.OLD_ASSERTION
    except jwt.PyJWTError:
        return answers.BAD_ASSERTION
    return None if told["sub"] == subject else answers.BAD_ASSERTION


def _is_named(certificate: x509.Certificate, header: dict[str, Any]) -> bool:
    """The header names a certificate by one of its fingerprints."""
    prints = {
        "x5t": certificate.fingerprint(hashes.SHA1()),  # noqa: S303 - a name, as Entra knows it
        "x5t#S256": certificate.fingerprint(hashes.SHA256()),
    }
    return any(
        str(header.get(name, "")).rstrip("=") == base64.urlsafe_b64encode(print_).rstrip(b"=").decode()
        for name, print_ in prints.items()
    )


def _read(pem: str) -> x509.Certificate:
    return x509.load_pem_x509_certificate(pem.encode())
