"""Tests of the lab's certificate authority."""

from __future__ import annotations

import ipaddress
import json
from typing import TYPE_CHECKING

from cryptography import x509

from aks_flex_lab.pki import CertificateAuthority, kubeconfig_text

if TYPE_CHECKING:
    from pathlib import Path


def made(tmp_path: Path) -> CertificateAuthority:
    authority = CertificateAuthority(tmp_path / "pki")
    authority.ensure()
    return authority


def test_server_certificate_has_requested_names_and_addresses(tmp_path: Path) -> None:
    authority = made(tmp_path)
    pair = authority.issue("web", "web", names=("api.example", "198.18.0.10"))
    certificate = x509.load_pem_x509_certificate(pair.certificate.read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value

    certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(authority.certificate.read_bytes()))
    assert names.get_values_for_type(x509.DNSName) == ["api.example"]
    assert names.get_values_for_type(x509.IPAddress) == [ipaddress.ip_address("198.18.0.10")]


def test_existing_certificates_are_reused(tmp_path: Path) -> None:
    authority = made(tmp_path)
    before = authority.certificate.read_text(), authority.issue("a", "a").certificate.read_text()
    authority.ensure()

    assert (authority.certificate.read_text(), authority.issue("a", "a").certificate.read_text()) == before


def test_private_keys_are_readable_only_by_owner(tmp_path: Path) -> None:
    authority = made(tmp_path)
    keys = [authority.key, authority.issue("a", "a").key, authority.service_account_key()]

    assert [key.stat().st_mode & 0o777 for key in keys] == [0o600] * 3


def test_kubeconfig_embeds_all_credentials(tmp_path: Path) -> None:
    authority = made(tmp_path)
    text = kubeconfig_text("https://api", authority, authority.issue("admin", "admin", "system:masters"))

    assert str(tmp_path) not in text
    assert json.loads(text)["clusters"][0]["cluster"]["server"] == "https://api"
