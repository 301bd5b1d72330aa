"""Tests of the service's private CA, and of the certificate that it issues for itself."""

from __future__ import annotations

import ipaddress
import stat
from typing import TYPE_CHECKING

import pytest
from cryptography import x509

from aks_flex_node.errors import ConfigError
from aks_flex_rp.crypto import tls_certificates
from aks_flex_rp.crypto.tls_certificates import PrivateCa

if TYPE_CHECKING:
    from pathlib import Path

NOW = 1_800_000_000.0
DAY = 86400.0
NAMES = ("rp.example", "10.0.0.7")


@pytest.fixture
def own(tmp_path: Path) -> PrivateCa:
    return PrivateCa(tmp_path / "tls", NAMES)


def test_first_start_creates_ca_files_with_private_keys_protected(own: PrivateCa) -> None:
    own.current(NOW)
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in own.directory.iterdir()}
    assert modes == {"ca.pem": 0o600, "server.pem": 0o600, "ca.crt": 0o644}
    assert b"PRIVATE" not in own.public_file.read_bytes()


def test_server_certificate_is_signed_by_ca_for_names_and_addresses(own: PrivateCa) -> None:
    server, authority = own.current(NOW).certificates
    server.verify_directly_issued_by(authority)
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["rp.example"]
    assert names.get_values_for_type(x509.IPAddress) == [ipaddress.ip_address("10.0.0.7")]


def test_ca_cannot_sign_intermediate_cas(own: PrivateCa) -> None:
    authority = own.current(NOW).certificates[1]
    limits = authority.extensions.get_extension_for_class(x509.BasicConstraints).value
    assert (limits.ca, limits.path_length) == (True, 0)


def test_pin_is_of_ca_and_unchanged_after_server_certificate_renewal(own: PrivateCa) -> None:
    first = own.current(NOW)
    assert first.pin == tls_certificates.certificate_pin(x509.load_pem_x509_certificate(own.public_file.read_bytes()))
    renewed = own.current(NOW + 300 * DAY)
    assert renewed.certificates[0] != first.certificates[0]
    assert renewed.pin == first.pin


@pytest.mark.parametrize(("days", "renewed"), [(0, False), (240, False), (245, True), (400, True)])
def test_server_certificate_is_renewed_in_last_third_of_its_lifetime(
    own: PrivateCa, days: int, renewed: bool
) -> None:
    first = own.current(NOW)
    assert (own.current(NOW + days * DAY).certificates != first.certificates) is renewed


def test_server_certificate_is_reissued_only_when_names_change(own: PrivateCa) -> None:
    first = own.current(NOW)
    assert PrivateCa(own.directory, NAMES[::-1]).current(NOW).certificates == first.certificates
    other = PrivateCa(own.directory, ("other.example",)).current(NOW)
    assert other.certificates[0] != first.certificates[0]
    assert other.pin == first.pin


def test_damaged_server_certificate_is_reissued(own: PrivateCa) -> None:
    own.current(NOW)
    own.server_file.write_bytes(b"half of a")
    own.current(NOW).certificates[0].verify_directly_issued_by(own.current(NOW).certificates[1])


def test_damaged_ca_is_an_error(own: PrivateCa) -> None:
    own.current(NOW)
    own.authority_file.write_bytes(b"half of a")
    with pytest.raises(ConfigError, match=r"ca\.pem contains no"):
        own.current(NOW)


def test_ca_key_readable_by_others_is_refused(own: PrivateCa) -> None:
    own.current(NOW)
    own.authority_file.chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        own.current(NOW)
