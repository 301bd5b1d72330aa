"""Server certificates: parsing and checking a chain, loading it from files, the reloadable SSLContext, and the
private CA of a service on one machine.

The private CA is valid for ten years. The server certificate that it signs is valid for one year and is renewed when
a third of that is left or its names change. Machines pin the CA in their config URL, so it must not change while URLs
are in use.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import ssl
import time
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Protocol

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID

from aks_flex_node import x509_builder
from aks_flex_node.errors import ConfigError, FlexError
from aks_flex_rp import private_files

if TYPE_CHECKING:
    from pathlib import Path

    from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes


@dataclass(frozen=True)
class CertificateChain:
    """A private key with its certificate and the CA certificates of the chain."""

    key: PrivateKeyTypes = field(repr=False)
    certificates: tuple[x509.Certificate, ...]

    @property
    def pem(self) -> bytes:
        """Returns key and certificates in one PEM text, key first. It is a secret."""
        key = self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        return key + b"".join(each.public_bytes(Encoding.PEM) for each in self.certificates)

    @property
    def pin(self) -> str:
        """Returns the pin of the CA for machines that do not trust it yet, or an empty string if it is not
        included.
        """
        last = self.certificates[-1]
        return certificate_pin(last) if last.issuer == last.subject and _is_authority(last) else ""


def certificate_pin(certificate: x509.Certificate) -> str:
    """Returns the SHA-256 of the certificate, which a config URL contains as pin."""
    return hashlib.sha256(certificate.public_bytes(Encoding.DER)).hexdigest()


def _is_authority(certificate: x509.Certificate) -> bool:
    try:
        return certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except x509.ExtensionNotFound:
        return False


def parse_chain(certificates: bytes, key: bytes, names: tuple[str, str]) -> CertificateChain:
    """Parses a chain from PEM. `names` are the names of the two files, for messages."""
    return CertificateChain(_key(key, names[1]), _certificates(certificates, names[0]))


def check_chain(chain: CertificateChain, names: tuple[str, str], now: float) -> None:
    """Raises an error if clients could not connect to a server with this chain."""
    first, moment = chain.certificates[0], datetime.fromtimestamp(now, timezone.utc)
    if _public(first.public_key()) != _public(chain.key.public_key()):
        raise ConfigError(
            "tls-key-mismatch",
            f"The key in {names[1]} does not belong to the first certificate in {names[0]}.",
            "Use a matching key and certificate. The server's certificate must be the first in its file.",
        )
    if moment > first.not_valid_after_utc:
        raise ConfigError(
            "tls-certificate-expired",
            f"The certificate in {names[0]} expired at {first.not_valid_after_utc:%Y-%m-%d %H:%M} UTC.",
            "Renew the certificate: the service reloads the file automatically. Also check this machine's clock.",
        )
    if moment < first.not_valid_before_utc:
        raise ConfigError(
            "tls-certificate-not-yet-valid",
            f"The certificate in {names[0]} is not valid before {first.not_valid_before_utc:%Y-%m-%d %H:%M} UTC.",
            "Check the clock of this machine (`date`).",
        )


def _public(key: object) -> bytes:
    form: bytes = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)  # type: ignore[attr-defined]
    return form


def _certificates(pem: bytes, name: str) -> tuple[x509.Certificate, ...]:
    try:
        return tuple(x509.load_pem_x509_certificates(pem))
    except ValueError as error:
        raise ConfigError(
            "tls-file-invalid",
            f"{name} contains no PEM certificate.",
            f"Check it with `openssl x509 -in {name} -noout -subject`.",
        ) from error


def _key(pem: bytes, name: str) -> PrivateKeyTypes:
    try:
        return load_pem_private_key(pem, None)
    except TypeError as error:
        raise ConfigError(
            "tls-file-invalid",
            f"The key in {name} is encrypted with a password, which the service does not support.",
            f"Decrypt it with `openssl pkey -in {name} -out NEW`, and run `chmod 600 NEW`.",
        ) from error
    except ValueError as error:
        raise ConfigError(
            "tls-file-invalid", f"{name} contains no PEM private key.", "Use the file with the server's key."
        ) from error


WORLD_ACCESS = 0o007  # group access is allowed: Debian's ssl-cert group and Kubernetes' fsGroup need it


@dataclass(frozen=True)
class CertificateFiles:
    certificate: Path  # with its chain
    key: Path

    def current(self, now: float) -> CertificateChain:
        names = (str(self.certificate), str(self.key))
        chain = parse_chain(self._public(), private_files.read(self.key, WORLD_ACCESS), names)
        check_chain(chain, names, now)
        return chain

    def _public(self) -> bytes:
        try:
            return self.certificate.read_bytes()
        except OSError as error:
            raise ConfigError(
                "tls-file-invalid", f"Cannot read {self.certificate}: {error.strerror}.", "Check the path."
            ) from error


log = logging.getLogger(__name__)

RELOAD_SECONDS = 60.0


class CertificateSource(Protocol):
    def current(self, now: float) -> CertificateChain:
        """Returns the chain to serve. Raises an error if no usable certificate is available."""
        ...


class ServerTls:
    def __init__(self, source: CertificateSource, now: float) -> None:
        self._source = source
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        self.context = context
        self._chain = source.current(now)
        _load(self.context, self._chain)

    @property
    def pin(self) -> str:
        """Returns the pin of the CA for config URLs, or an empty string if clients must already trust the CA."""
        return self._chain.pin

    @property
    def expires(self) -> float:
        return self._chain.certificates[0].not_valid_after_utc.timestamp()

    def refresh(self, now: float) -> bool:
        """Renews and reloads the certificate if it changed. New connections use it."""
        chain = self._source.current(now)
        if chain.certificates == self._chain.certificates:
            return False
        _load(self.context, chain)
        self._chain = chain
        return True

    async def run(self, seconds: float = RELOAD_SECONDS) -> None:
        """Refreshes periodically. Logs an error once and keeps the current certificate."""
        reported = ""
        while True:
            await asyncio.sleep(seconds)
            try:
                if self.refresh(time.time()):
                    log.info("Renewed the TLS certificate.")
                reported = ""
            except (FlexError, OSError) as error:
                if str(error) != reported:
                    log.error("Cannot renew the TLS certificate, the current one remains in use. %s", error)
                reported = str(error)


def _load(context: ssl.SSLContext, chain: CertificateChain) -> None:
    """Loads exactly the checked chain from an in-memory file, because the files on disk may change at any time."""
    handle = os.memfd_create("aks-flex-rp-tls")
    try:
        with os.fdopen(os.dup(handle), "wb") as file:
            file.write(chain.pem)
        context.load_cert_chain(f"/proc/self/fd/{handle}")
    finally:
        os.close(handle)


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
    return parse_chain(content, content, (str(file), str(file)))


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
