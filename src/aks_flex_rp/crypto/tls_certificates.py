"""Server certificates: parsing and checking a chain, loading it from files, and the SSLContext that serves it and is
reloaded in place.
"""

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
    """A key, its certificate, and those that vouch for it, up to the authority where that is included."""

    key: PrivateKeyTypes = field(repr=False)
    certificates: tuple[x509.Certificate, ...]

    @property
    def pem(self) -> bytes:
        """All of it in one text, the key first: a secret."""
        key = self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        return key + b"".join(each.public_bytes(Encoding.PEM) for each in self.certificates)

    @property
    def pin(self) -> str:
        """Of the authority, for machines that do not know it; empty when the chain does not include it."""
        last = self.certificates[-1]
        return certificate_pin(last) if last.issuer == last.subject and _is_authority(last) else ""


def certificate_pin(certificate: x509.Certificate) -> str:
    """By which a configuration URL says whom to trust: the SHA-256 of the certificate."""
    return hashlib.sha256(certificate.public_bytes(Encoding.DER)).hexdigest()


def _is_authority(certificate: x509.Certificate) -> bool:
    try:
        return certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except x509.ExtensionNotFound:
        return False


def parse_chain(certificates: bytes, key: bytes, names: tuple[str, str]) -> CertificateChain:
    """From PEM; `names` are those of the two files, for messages."""
    return CertificateChain(_key(key, names[1]), _certificates(certificates, names[0]))


def check_chain(chain: CertificateChain, names: tuple[str, str], now: float) -> None:
    """Raise when a server with these could not be spoken to."""
    first, moment = chain.certificates[0], datetime.fromtimestamp(now, timezone.utc)
    if _public(first.public_key()) != _public(chain.key.public_key()):
        raise ConfigError(
            "tls-key-mismatch",
            f"The key in {names[1]} is not the one of the first certificate in {names[0]}.",
            "Name the two files that were made together, the server's own certificate first in its file.",
        )
    if moment > first.not_valid_after_utc:
        raise ConfigError(
            "tls-certificate-expired",
            f"The certificate in {names[0]} ended at {first.not_valid_after_utc:%Y-%m-%d %H:%M} UTC.",
            "Renew it: the service takes up the new file by itself. If it is not old, look at this machine's `date`.",
        )
    if moment < first.not_valid_before_utc:
        raise ConfigError(
            "tls-certificate-not-yet-valid",
            f"The certificate in {names[0]} is valid only from {first.not_valid_before_utc:%Y-%m-%d %H:%M} UTC on.",
            "Look at this machine's `date`: a clock that is wrong is the usual cause.",
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
            f"{name} holds no certificate in PEM form.",
            f"Look with `openssl x509 -in {name} -noout -subject`.",
        ) from error


def _key(pem: bytes, name: str) -> PrivateKeyTypes:
    try:
        return load_pem_private_key(pem, None)
    except TypeError as error:
        raise ConfigError(
            "tls-file-invalid",
            f"The key in {name} is protected by a password, which a service cannot type.",
            f"Write it without one: `openssl pkey -in {name} -out NEW`, and keep the new file to its owner.",
        ) from error
    except ValueError as error:
        raise ConfigError(
            "tls-file-invalid", f"{name} holds no private key in PEM form.", "Name the file with the server's key."
        ) from error


WORLD_ACCESS = 0o007  # a group may read a server's key: Debian's ssl-cert, and Kubernetes' fsGroup, work that way


@dataclass(frozen=True)
class CertificateFiles:
    certificate: Path  # with what vouches for it after it
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
                "tls-file-invalid", f"{self.certificate} cannot be read: {error.strerror}.", "Check the path."
            ) from error


log = logging.getLogger(__name__)

RELOAD_SECONDS = 60.0


class CertificateSource(Protocol):
    def current(self, now: float) -> CertificateChain:
        """What to serve with now; an error when there is nothing that a client could accept."""
        ...


class ServerTls:
    def __init__(self, source: CertificateSource, now: float) -> None:
        self._source = source
        self.context = _context()
        self._chain = source.current(now)
        _load(self.context, self._chain)

    @property
    def pin(self) -> str:
        """Of the authority, for configuration URLs; empty when clients must know it by themselves."""
        return self._chain.pin

    def refresh(self, now: float) -> bool:
        """Renew and reload where it is time to; connections that are made from now on get the new certificate."""
        chain = self._source.current(now)
        if chain.certificates == self._chain.certificates:
            return False
        _load(self.context, chain)
        self._chain = chain
        return True

    async def run(self, seconds: float = RELOAD_SECONDS) -> None:
        """Refresh for ever. What cannot be used is told once, and what was there before goes on."""
        reported = ""
        while True:
            await asyncio.sleep(seconds)
            try:
                if self.refresh(time.time()):
                    log.info("The TLS certificate was renewed.")
                reported = ""
            except (FlexError, OSError) as error:
                if str(error) != reported:
                    log.error("The TLS certificate cannot be renewed; the old one stays. %s", error)
                reported = str(error)


def _context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    return context


def _load(context: ssl.SSLContext, chain: CertificateChain) -> None:
    """Exactly what was checked, by way of a file in memory: those on the disk may change at any moment."""
    handle = os.memfd_create("aks-flex-rp-tls")
    try:
        with os.fdopen(os.dup(handle), "wb") as file:
            file.write(chain.pem)
        context.load_cert_chain(f"/proc/self/fd/{handle}")
    finally:
        os.close(handle)
