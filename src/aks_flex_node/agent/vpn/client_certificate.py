"""Client certificates that identify this machine to the VPN gateway.

Each certificate has its own root, whose private key is never written to disk. Renewal creates a new root and
certificate.
"""

from __future__ import annotations

import base64
import datetime
import hashlib
import re
from dataclasses import field

from aks_flex_node.agent.certificates import PEM
from aks_flex_node.lean_dataclass import frozen

VALIDITY_DAYS = 365
BACKDATED = datetime.timedelta(days=1)  # tolerates clocks that are behind
KEY_BITS = 2048  # supported by Azure VPN gateways


@frozen
class ClientCertificate:
    name: str  # name of the root certificate on the gateway
    root: str  # the root certificate: DER in base64, on one line
    pem: bytes = field(repr=False)  # the client certificate, the root certificate and the client's private key


def make_client_certificate(node: str, days: int = VALIDITY_DAYS) -> ClientCertificate:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import rsa
    from cryptography.x509.oid import ExtendedKeyUsageOID

    from aks_flex_node.x509_builder import authority_builder, distinguished_name, leaf_builder, validity_period

    keys = [rsa.generate_private_key(public_exponent=65537, key_size=KEY_BITS) for _ in range(2)]
    root_key, client_key = keys
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    stamp = hashlib.sha256(root_key.public_key().public_bytes(serialization.Encoding.DER, form)).hexdigest()[:8]
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
    # The client certificate must be first: its expiry is the one that is read.
    pem = client.public_bytes(plain) + root.public_bytes(plain) + key
    return ClientCertificate(f"aks-flex-node-{_safe_name(node)[:40]}-{stamp}", root_data(pem), pem)


def root_data(pem: bytes) -> str:
    """Returns the root certificate in the form of the gateway, or an empty string if the file is damaged."""
    found = PEM.findall(pem)
    return b"".join(found[1].split()).decode("ascii") if len(found) == 2 else ""


def same_certificate(one: str, other: str) -> bool:
    """Returns whether two base64 texts contain the same certificate, regardless of line breaks."""
    try:
        return base64.b64decode("".join(one.split())) == base64.b64decode("".join(other.split()))
    except ValueError:
        return False


def _safe_name(node: str) -> str:
    """Replaces characters that Azure does not allow in a name."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", node)[:64] or "node"
