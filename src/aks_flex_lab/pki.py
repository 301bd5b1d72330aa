"""The lab's certificate authority: issues server and client certificates, and writes kubeconfigs."""

from __future__ import annotations

import base64
import datetime
import json
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID

from aks_flex_lab.files import write_atomically
from aks_flex_lab.processes import run
from aks_flex_node import x509_builder

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

LIFETIME = datetime.timedelta(days=365)
BACKDATED = datetime.timedelta(hours=1)
USAGES = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])


@dataclass(frozen=True)
class CertificatePair:
    """A certificate and its key."""

    certificate: Path
    key: Path

    @property
    def exists(self) -> bool:
        return self.certificate.exists() and self.key.exists()


@dataclass(frozen=True)
class CertificateAuthority:
    directory: Path

    @property
    def certificate(self) -> Path:
        return self.directory / "ca.crt"

    @property
    def key(self) -> Path:
        return self.directory / "ca.key"

    @property
    def pair(self) -> CertificatePair:
        return CertificatePair(self.certificate, self.key)

    @cached_property
    def subject_hash(self) -> str:
        """The hash by which OpenSSL finds the certificate in a directory."""
        return run("openssl", "x509", "-noout", "-hash", "-in", self.certificate).out.strip()

    def ensure(self) -> None:
        if self.pair.exists:
            return
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509_builder.distinguished_name("aks-flex-lab CA", "aks-flex-lab")
        builder = x509_builder.authority_builder(
            name, key.public_key(), _period(), path_length=None, digital_signature=True
        )
        _store(self.pair, builder.sign(key, hashes.SHA256()), key)

    def issue(
        self, file: str, common_name: str, organization: str = "", names: Sequence[str] = ()
    ) -> CertificatePair:
        """Issues a certificate for a server (`names`) or a client (`organization`), unless it exists."""
        pair = CertificatePair(self.directory / f"{file}.crt", self.directory / f"{file}.key")
        if pair.exists:
            return pair
        authority = x509.load_pem_x509_certificate(self.certificate.read_bytes())
        signer = serialization.load_pem_private_key(self.key.read_bytes(), None)
        assert isinstance(signer, ec.EllipticCurvePrivateKey)  # noqa: S101 - we made it ourselves, above
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509_builder.distinguished_name(common_name, organization)
        builder = (
            x509_builder.leaf_builder(subject, authority.subject, key.public_key(), _period(), key_encipherment=True)
            .add_extension(USAGES, critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
        )
        if names:
            builder = builder.add_extension(
                x509.SubjectAlternativeName([x509_builder.general_name(name) for name in names]), critical=False
            )
        _store(pair, builder.sign(signer, hashes.SHA256()), key)
        return pair

    def service_account_key(self) -> Path:
        """The key that signs service account tokens."""
        path = self.directory / "service-accounts.key"
        if not path.exists():
            # PKCS#1: the API server does not accept PKCS#8 for a key whose private and public halves it both reads.
            form = serialization.PrivateFormat.TraditionalOpenSSL
            write_atomically(path, _pem(ec.generate_private_key(ec.SECP256R1()), form), 0o600)
        return path


def kubeconfig_text(server: str, authority: CertificateAuthority, client: CertificatePair) -> str:
    """Returns a kubeconfig with embedded certificates. JSON is YAML, so no YAML library is needed."""
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "lab",
            "clusters": [
                {
                    "name": "lab",
                    "cluster": {"server": server, "certificate-authority-data": _base64(authority.certificate)},
                }
            ],
            "users": [
                {
                    "name": "lab",
                    "user": {
                        "client-certificate-data": _base64(client.certificate),
                        "client-key-data": _base64(client.key),
                    },
                }
            ],
            "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": "lab"}}],
        },
        indent=1,
    )


def _base64(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()


def _period() -> x509_builder.ValidityPeriod:
    return x509_builder.validity_period(LIFETIME - BACKDATED, BACKDATED)


def _pem(
    key: ec.EllipticCurvePrivateKey, form: serialization.PrivateFormat = serialization.PrivateFormat.PKCS8
) -> bytes:
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())


def _store(pair: CertificatePair, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
    write_atomically(pair.key, _pem(key), 0o600)
    write_atomically(pair.certificate, certificate.public_bytes(serialization.Encoding.PEM))
