"""The lab's certificate authority: issues server and client certificates, and writes kubeconfigs."""

from __future__ import annotations

import base64
import datetime
import ipaddress
import json
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from aks_flex_lab.files import write_atomically
from aks_flex_lab.processes import run

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

DAYS = 365
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
        """By which OpenSSL finds a certificate in a directory."""
        return run("openssl", "x509", "-noout", "-hash", "-in", self.certificate).out.strip()

    def ensure(self) -> None:
        if self.pair.exists:
            return
        key = ec.generate_private_key(ec.SECP256R1())
        name = _name("aks-flex-lab CA", "aks-flex-lab")
        certificate = (
            _builder(name, name, key)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(_key_usage(signs_certificates=True), critical=True)
            .sign(key, hashes.SHA256())
        )
        _store(self.pair, certificate, key)

    def issue(
        self, file: str, common_name: str, organization: str = "", names: Sequence[str] = ()
    ) -> CertificatePair:
        """A certificate for a server (`names`) or a person or program (`organization`); made once."""
        pair = CertificatePair(self.directory / f"{file}.crt", self.directory / f"{file}.key")
        if pair.exists:
            return pair
        authority = x509.load_pem_x509_certificate(self.certificate.read_bytes())
        signer = serialization.load_pem_private_key(self.key.read_bytes(), None)
        assert isinstance(signer, ec.EllipticCurvePrivateKey)  # noqa: S101 - we made it ourselves, above
        key = ec.generate_private_key(ec.SECP256R1())
        builder = (
            _builder(_name(common_name, organization), authority.subject, key)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(signs_certificates=False), critical=True)
            .add_extension(USAGES, critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
        )
        if names:
            builder = builder.add_extension(
                x509.SubjectAlternativeName([_san(name) for name in names]), critical=False
            )
        _store(pair, builder.sign(signer, hashes.SHA256()), key)
        return pair

    def service_account_key(self) -> Path:
        """The key that service account tokens are signed with."""
        path = self.directory / "service-accounts.key"
        if not path.exists():
            # The API server takes this older form, and not PKCS#8, for a key of which it needs both halves.
            form = serialization.PrivateFormat.TraditionalOpenSSL
            write_atomically(path, _pem(ec.generate_private_key(ec.SECP256R1()), form), 0o600)
        return path


def kubeconfig_text(server: str, authority: CertificateAuthority, client: CertificatePair) -> str:
    """A kubeconfig that needs no other file. JSON is YAML, so no library is needed to write it."""
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


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    # An hour back, so that a machine whose clock is a little late does not refuse it.
    start = datetime.datetime.now(datetime.timezone.utc) - datetime.timedelta(hours=1)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(start + datetime.timedelta(days=DAYS))
    )


def _name(common_name: str, organization: str) -> x509.Name:
    parts = [x509.NameAttribute(NameOID.COMMON_NAME, common_name)]
    if organization:
        parts.insert(0, x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization))
    return x509.Name(parts)


def _san(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=not signs_certificates,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(
    key: ec.EllipticCurvePrivateKey, form: serialization.PrivateFormat = serialization.PrivateFormat.PKCS8
) -> bytes:
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())


def _store(pair: CertificatePair, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
    write_atomically(pair.key, _pem(key), 0o600)
    write_atomically(pair.certificate, certificate.public_bytes(serialization.Encoding.PEM))
