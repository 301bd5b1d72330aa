"""Tests of a certificate's expiry, compared with a library."""

from __future__ import annotations

import datetime

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from aks_flex_node.agent.certificates import expiry
from tests.unit.agent.config.builders import PEM

UTC = datetime.timezone.utc


def certificate_until(end: datetime.datetime, names: int = 0) -> bytes:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "system:node:edge-1")])
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


@pytest.mark.parametrize(
    "end",
    [
        datetime.datetime(2027, 2, 28, 23, 59, 58, tzinfo=UTC),
        datetime.datetime(1999, 12, 31, tzinfo=UTC),
        datetime.datetime(2049, 12, 31, 1, 2, 3, tzinfo=UTC),
        datetime.datetime(2050, 1, 1, tzinfo=UTC),
        datetime.datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC),
    ],
    ids=str,
)
def test_certificate_expiry_is_read_in_both_time_formats(end: datetime.datetime) -> None:
    assert expiry(certificate_until(end)) == end
    assert expiry(certificate_until(end, names=100)) == end


def test_expiry_is_of_the_first_certificate_and_keys_are_skipped() -> None:
    first = certificate_until(datetime.datetime(2030, 1, 1, tzinfo=UTC))
    key = b"-----BEGIN EC PRIVATE KEY-----\nAAAA\n-----END EC PRIVATE KEY-----\n"
    assert expiry(key + first + PEM.encode()) == datetime.datetime(2030, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    "pem",
    [
        b"",
        b"garbage",
        b"-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n",
        b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
        b"-----BEGIN CERTIFICATE-----\n!!!!\n-----END CERTIFICATE-----\n",
        b"-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n",
        b"-----BEGIN CERTIFICATE-----\nMIIBITCByKADAgECAgEBMAoGCCqGSM49BAMC\n-----END CERTIFICATE-----\n",
        PEM[: len(PEM) // 2].encode(),
    ],
)
def test_unreadable_certificate_has_no_expiry(pem: bytes) -> None:
    assert expiry(pem) is None


def test_truncated_certificate_does_not_raise() -> None:
    lines = PEM.splitlines(keepends=True)
    body = "".join(lines[1:-1]).replace("\n", "")
    for count in range(0, len(body), 4):
        expiry(f"{lines[0]}{body[:count]}\n{lines[-1]}".encode())
