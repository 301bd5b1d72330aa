"""Certificates with their keys, in the form in which a kubelet stores them."""

from __future__ import annotations

import datetime
import functools

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

UTC = datetime.timezone.utc
LATER = datetime.datetime(2049, 1, 1, tzinfo=UTC)


@functools.cache
def client_pem(end: datetime.datetime = LATER, node: str = "edge-1") -> str:
    """Returns a certificate of a node that is valid until `end`, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = certificate_until(end, key, node=node)
    form = serialization.PrivateFormat.TraditionalOpenSSL
    return (certificate + key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())).decode()


def certificate_until(
    end: datetime.datetime, key: ec.EllipticCurvePrivateKey, names: int = 0, node: str = "edge-1"
) -> bytes:
    """Returns a certificate that is valid until `end`, with a number of host names."""
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"system:node:{node}")])
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(datetime.datetime(1990, 1, 1, tzinfo=UTC))
        .not_valid_after(end)
    )
    if names:
        others = [x509.DNSName(f"name-{number}.example") for number in range(names)]
        builder = builder.add_extension(x509.SubjectAlternativeName(others), critical=False)
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def with_end(pem: str, end: datetime.datetime, authority_key: bytes) -> str:
    """Returns a certificate and its key with another end of its validity, issued again by the same authority."""
    signer = serialization.load_pem_private_key(authority_key, None)
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    known = x509.load_pem_x509_certificate(pem.encode())
    builder = (
        x509.CertificateBuilder()
        .subject_name(known.subject)
        .issuer_name(known.issuer)
        .public_key(known.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(known.not_valid_before_utc)
        .not_valid_after(end)
    )
    for each in known.extensions:
        builder = builder.add_extension(each.value, each.critical)
    issued = builder.sign(signer, hashes.SHA256()).public_bytes(serialization.Encoding.PEM).decode()
    return issued + pem.partition("-----END CERTIFICATE-----\n")[2]
