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
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey

VALIDITY_DAYS = 365
BACKDATED = datetime.timedelta(days=1)  # clocks of machines and gateways are often late
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

    from aks_flex_node.x509_builder import authority_builder, distinguished_name, leaf_builder, validity_period

    keys = [rsa.generate_private_key(public_exponent=65537, key_size=KEY_BITS) for _ in range(2)]
    root_key, client_key = keys
    stamp = hashlib.sha256(_der_of_key(root_key)).hexdigest()[:8]
    root_name = distinguished_name(f"aks-flex-node {stamp}")
    client_name = distinguished_name(_safe_name(node))
    period = validity_period(datetime.timedelta(days=days), BACKDATED)
    root = authority_builder(root_name, root_key.public_key(), period, path_length=0, digital_signature=True).sign(
        root_key, hashes.SHA256()
    )
    client = (
        leaf_builder(client_name, root_name, client_key.public_key(), period, key_encipherment=True)
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
