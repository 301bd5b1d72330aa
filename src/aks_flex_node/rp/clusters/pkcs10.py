"""What stands inside a request for a certificate, as plain data."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.x509.oid import NameOID

CURVES = {"secp256r1", "secp384r1", "secp521r1"}
RSA_BITS = range(2048, 8193)


@dataclass(frozen=True)
class Contents:
    common_names: tuple[str, ...]
    organizations: tuple[str, ...]
    fields: int  # how many the subject has in all
    weakness: str  # of its key; empty when there is none
    extensions: tuple[str, ...]  # beside names
    dns_names: tuple[str, ...] = ()
    addresses: tuple[str, ...] = ()
    other_names: tuple[str, ...] = ()  # their kinds


def contents(encoded: str) -> Contents | None:
    """From base64 of PEM; None when it cannot be read, or whoever made it does not hold its key."""
    try:
        request = x509.load_pem_x509_csr(base64.b64decode(encoded, validate=True))
        return _contents(request) if request.is_signature_valid else None
    except (ValueError, TypeError, binascii.Error, UnsupportedAlgorithm, x509.DuplicateExtension):
        return None


def _contents(request: x509.CertificateSigningRequest) -> Contents:
    subject = list(request.subject)
    names: list[x509.GeneralName] = []
    extensions = []
    for extension in request.extensions:
        if isinstance(extension.value, x509.SubjectAlternativeName):
            names = list(extension.value)
        else:
            extensions.append(extension.oid.dotted_string)
    return Contents(
        tuple(str(one.value) for one in subject if one.oid == NameOID.COMMON_NAME),
        tuple(str(one.value) for one in subject if one.oid == NameOID.ORGANIZATION_NAME),
        len(subject),
        _weakness(request),
        tuple(extensions),
        tuple(one.value for one in names if isinstance(one, x509.DNSName)),
        tuple(str(one.value) for one in names if isinstance(one, x509.IPAddress)),
        tuple(type(one).__name__ for one in names if not isinstance(one, (x509.DNSName, x509.IPAddress))),
    )


def _weakness(request: x509.CertificateSigningRequest) -> str:
    key = request.public_key()
    if isinstance(key, ed25519.Ed25519PublicKey):
        return ""
    if isinstance(key, ec.EllipticCurvePublicKey):
        return "" if key.curve.name in CURVES else f"its key is on the curve {key.curve.name}"
    if isinstance(key, rsa.RSAPublicKey):
        return "" if key.key_size in RSA_BITS else f"its RSA key has {key.key_size} bits"
    return "its key is of a kind that nodes do not use"
