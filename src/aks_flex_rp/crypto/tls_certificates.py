"""Server certificates: parsing and checking a chain, loading it from files, and the reloadable SSLContext."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import ssl
import time
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Protocol

from cryptography import x509
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)

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
