"""A key and the certificates that go with it: read, and checked before anybody relies on them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)

from aks_flex_node.errors import ConfigError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes


@dataclass(frozen=True)
class Chain:
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
        return pin(last) if last.issuer == last.subject and _is_authority(last) else ""


def pin(certificate: x509.Certificate) -> str:
    """By which a configuration URL says whom to trust: the SHA-256 of the certificate."""
    return hashlib.sha256(certificate.public_bytes(Encoding.DER)).hexdigest()


def _is_authority(certificate: x509.Certificate) -> bool:
    try:
        return certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except x509.ExtensionNotFound:
        return False


def read(certificates: bytes, key: bytes, names: tuple[str, str]) -> Chain:
    """From PEM; `names` are those of the two files, for messages."""
    return Chain(_key(key, names[1]), _certificates(certificates, names[0]))


def check(chain: Chain, names: tuple[str, str], now: float) -> None:
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
            "tls-certificate-early",
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
