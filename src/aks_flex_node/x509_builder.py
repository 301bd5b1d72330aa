"""Builds the common part of all certificates: names, validity, serial number, basic constraints, key usage.

The VPN client, the resource provider and the lab add their own extensions and sign. This module imports cryptography,
so the agent imports it only when it creates a certificate, to keep the daemon's memory use low.
"""

from __future__ import annotations

import ipaddress
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.x509.oid import NameOID

from aks_flex_node.lean_dataclass import frozen

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes


@frozen
class ValidityPeriod:
    start: datetime
    end: datetime


def validity_period(lifetime: timedelta, margin: timedelta, now: float | None = None) -> ValidityPeriod:
    """Returns a period that starts `margin` before now, so that peers whose clock is behind accept it."""
    moment = datetime.now(timezone.utc) if now is None else datetime.fromtimestamp(int(now), timezone.utc)
    return ValidityPeriod(moment - margin, moment + lifetime)


def distinguished_name(common_name: str, organization: str = "") -> x509.Name:
    parts = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization)] if organization else []
    return x509.Name([*parts, x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def general_name(name: str) -> x509.GeneralName:
    """Returns an IP address or a DNS name for the subject alternative names."""
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def authority_builder(
    name: x509.Name,
    public_key: CertificatePublicKeyTypes,
    period: ValidityPeriod,
    *,
    path_length: int | None,
    digital_signature: bool,
) -> x509.CertificateBuilder:
    """Starts a self-signed CA certificate."""
    usage = _key_usage(signs_certificates=True, digital_signature=digital_signature, key_encipherment=False)
    return (
        _builder(name, name, public_key, period)
        .add_extension(x509.BasicConstraints(ca=True, path_length=path_length), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
    )


def leaf_builder(
    subject: x509.Name,
    issuer: x509.Name,
    public_key: CertificatePublicKeyTypes,
    period: ValidityPeriod,
    *,
    key_encipherment: bool,
) -> x509.CertificateBuilder:
    """Starts a server or client certificate."""
    usage = _key_usage(signs_certificates=False, digital_signature=True, key_encipherment=key_encipherment)
    return (
        _builder(subject, issuer, public_key, period)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(usage, critical=True)
    )


def _builder(
    subject: x509.Name, issuer: x509.Name, public_key: CertificatePublicKeyTypes, period: ValidityPeriod
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(period.start)
        .not_valid_after(period.end)
    )


def _key_usage(*, signs_certificates: bool, digital_signature: bool, key_encipherment: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        content_commitment=False,
        key_encipherment=key_encipherment,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )
