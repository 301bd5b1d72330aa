"""Private CA of a service on one machine, and the server certificate that it signs.

Key and certificate are in one file each. The CA is valid for ten years. The server certificate is valid for one year
and is renewed when a third of that is left or its names change. Machines pin the CA in their config URL, so it must
not change while URLs are in use.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID

from aks_flex_node import x509_builder
from aks_flex_node.errors import ConfigError
from aks_flex_rp import private_files
from aks_flex_rp.crypto import tls_certificates
from aks_flex_rp.crypto.tls_certificates import CertificateChain

if TYPE_CHECKING:
    from pathlib import Path

AUTHORITY_LIFETIME = timedelta(days=3650)
SERVER_LIFETIME = timedelta(days=365)
BACKDATED = timedelta(hours=1)  # for machines whose clocks are late
COMMON_NAME_LIMIT = 64


@dataclass(frozen=True)
class PrivateCa:
    """Certificate source of a service without configured certificate files."""

    directory: Path
    names: tuple[str, ...]  # host names and addresses of the service

    @property
    def authority_file(self) -> Path:
        return self.directory / "ca.pem"

    @property
    def server_file(self) -> Path:
        return self.directory / "server.pem"

    @property
    def public_file(self) -> Path:
        """Returns the file with only the CA certificate, for clients."""
        return self.directory / "ca.crt"

    def current(self, now: float) -> CertificateChain:
        """Returns the server certificate. Creates or renews the CA and the certificate if needed."""
        authority = self._authority(now)
        server = self._stored_chain()
        if server is None or not is_current(server, authority, self.names, now):
            server = sign_server_certificate(authority, self.names, now)
            private_files.write(self.server_file, server.pem)
        return server

    def _authority(self, now: float) -> CertificateChain:
        if not self.authority_file.exists():
            private_files.create(self.authority_file, create_ca(now).pem)
        authority = _read(self.authority_file)
        public = authority.certificates[0].public_bytes(Encoding.PEM)
        if not self.public_file.exists() or self.public_file.read_bytes() != public:
            private_files.write(self.public_file, public, 0o644)
        return authority

    def _stored_chain(self) -> CertificateChain | None:
        """Returns the stored certificate, or None if it is missing or unreadable, so that it is created again."""
        with suppress(ConfigError):
            return _read(self.server_file)
        return None


def _read(file: Path) -> CertificateChain:
    content = private_files.read(file)
    return tls_certificates.parse_chain(content, content, (str(file), str(file)))


def is_current(server: CertificateChain, authority: CertificateChain, names: tuple[str, ...], now: float) -> bool:
    """Returns whether the certificate has these names, is signed by this CA, and has a third of its lifetime left."""
    certificate = server.certificates[0]
    start, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    fresh = datetime.fromtimestamp(now, timezone.utc) < end - (end - start) / 3
    return fresh and server.certificates[1:] == authority.certificates and _names(certificate) == set(_sans(names))


def create_ca(now: float) -> CertificateChain:
    key = ec.generate_private_key(ec.SECP256R1())
    # The time in the name distinguishes a new CA from the one before.
    name = x509_builder.distinguished_name(f"aks-flex-rp CA {int(now)}")
    period = x509_builder.validity_period(AUTHORITY_LIFETIME, BACKDATED, now)
    builder = x509_builder.authority_builder(name, key.public_key(), period, path_length=0, digital_signature=False)
    return CertificateChain(key, (builder.sign(key, hashes.SHA256()),))


def sign_server_certificate(authority: CertificateChain, names: tuple[str, ...], now: float) -> CertificateChain:
    """Signs a certificate for these names. The chain includes the CA, which machines compare with their pin."""
    signer, above = authority.key, authority.certificates[0]
    assert isinstance(signer, ec.EllipticCurvePrivateKey)  # noqa: S101 - created by create_ca
    key = ec.generate_private_key(ec.SECP256R1())
    common = names[0] if len(names[0]) <= COMMON_NAME_LIMIT else "aks-flex-rp"
    identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
    subject = x509_builder.distinguished_name(common)
    period = x509_builder.validity_period(SERVER_LIFETIME, BACKDATED, now)
    certificate = (
        x509_builder.leaf_builder(subject, above.subject, key.public_key(), period, key_encipherment=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(_sans(names)), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(identifier, critical=False)
        .sign(signer, hashes.SHA256())
    )
    return CertificateChain(key, (certificate, above))


def _sans(names: tuple[str, ...]) -> list[x509.GeneralName]:
    return [_general_name(name) for name in dict.fromkeys(names)]


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509_builder.general_name(name.lower())
    except ValueError as error:
        raise ConfigError(
            "tls-name-invalid",
            f"{name!r} is neither a host name nor an IP address.",
            "Set the names by which machines reach this service.",
        ) from error


def _names(certificate: x509.Certificate) -> set[x509.GeneralName]:
    try:
        return set(certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value)
    except x509.ExtensionNotFound:
        return set()
