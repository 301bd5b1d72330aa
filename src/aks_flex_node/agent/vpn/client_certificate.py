"""Client certificates by which the VPN gateway knows this machine.

Each has a root of its own whose private key is never written to disk; renewal creates a new pair.
"""

from __future__ import annotations

import base64
import datetime
import hashlib
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from aks_flex_node.agent.certificates import PEM

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey

VALIDITY_DAYS = 365
KEY_BITS = 2048  # what Azure's gateways take


@dataclass(frozen=True)
class ClientCertificate:
    name: str  # of the root on the gateway
    root: str  # its public data: DER in base64, on one line
    pem: bytes = field(repr=False)  # the client's key and certificate, then the root's certificate


def make_client_certificate(node: str, days: int = VALIDITY_DAYS) -> ClientCertificate:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import rsa
    from cryptography.x509.oid import ExtendedKeyUsageOID

    keys = [rsa.generate_private_key(public_exponent=65537, key_size=KEY_BITS) for _ in range(2)]
    root_key, client_key = keys
    stamp = hashlib.sha256(_der_of_key(root_key)).hexdigest()[:8]
    root_name, client_name = _name(f"aks-flex-node {stamp}"), _name(_safe_name(node))
    root = (
        _builder(root_name, root_name, root_key, days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(root_key.public_key()), critical=False)
        .sign(root_key, hashes.SHA256())
    )
    client = (
        _builder(client_name, root_name, client_key, days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(root_key.public_key()), critical=False)
        .sign(root_key, hashes.SHA256())
    )
    plain = serialization.Encoding.PEM
    key = client_key.private_bytes(plain, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    # The client's certificate comes first: it is the one whose end matters.
    pem = client.public_bytes(plain) + root.public_bytes(plain) + key
    return ClientCertificate(f"aks-flex-node-{_safe_name(node)[:40]}-{stamp}", root_data(pem), pem)


def root_data(pem: bytes) -> str:
    """The root of a pair, as the gateway takes it; nothing when the file is damaged."""
    found = PEM.findall(pem)
    return b"".join(found[1].split()).decode("ascii") if len(found) == 2 else ""


def same_certificate(one: str, other: str) -> bool:
    """Whether two texts hold the same certificate, however they are broken into lines."""
    try:
        return base64.b64decode("".join(one.split())) == base64.b64decode("".join(other.split()))
    except ValueError:
        return False


def _safe_name(node: str) -> str:
    """Of the characters that Azure takes in a name."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", node)[:64] or "node"


def _der_of_key(key: RSAPrivateKey) -> bytes:
    from cryptography.hazmat.primitives import serialization

    form = serialization.PublicFormat.SubjectPublicKeyInfo
    return key.public_key().public_bytes(serialization.Encoding.DER, form)


def _name(common: str) -> x509.Name:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _builder(subject: x509.Name, issuer: x509.Name, key: RSAPrivateKey, days: int) -> x509.CertificateBuilder:
    from cryptography import x509

    # A day back, so that a machine or a gateway whose clock is late does not refuse it.
    start = datetime.datetime.now(datetime.timezone.utc) - datetime.timedelta(days=1)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(start + datetime.timedelta(days=days + 1))
    )


def _usage(*, signs: bool) -> x509.KeyUsage:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=not signs,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )
