"""The service's own authority, and the certificate that it signs for itself."""

from __future__ import annotations

import ipaddress
import stat
from typing import TYPE_CHECKING

import pytest
from cryptography import x509

from aks_flex_node.errors import ConfigError
from aks_flex_rp.crypto import tls_certificates
from aks_flex_rp.crypto.self_signed import PrivateCa

if TYPE_CHECKING:
    from pathlib import Path

NOW = 1_800_000_000.0
DAY = 86400.0
NAMES = ("rp.example", "10.0.0.7")


@pytest.fixture
def own(tmp_path: Path) -> PrivateCa:
    return PrivateCa(tmp_path / "tls", NAMES)


def test_the_first_start_makes_files_whose_secrets_only_the_owner_reads(own: PrivateCa) -> None:
    own.current(NOW)
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in own.directory.iterdir()}
    assert modes == {"ca.pem": 0o600, "server.pem": 0o600, "ca.crt": 0o644}
    assert b"PRIVATE" not in own.public_file.read_bytes()


def test_the_certificate_is_signed_by_the_authority_behind_it_for_names_and_addresses(own: PrivateCa) -> None:
    server, authority = own.current(NOW).certificates
    server.verify_directly_issued_by(authority)
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["rp.example"]
    assert names.get_values_for_type(x509.IPAddress) == [ipaddress.ip_address("10.0.0.7")]


def test_the_authority_can_sign_servers_and_no_other_authority(own: PrivateCa) -> None:
    authority = own.current(NOW).certificates[1]
    limits = authority.extensions.get_extension_for_class(x509.BasicConstraints).value
    assert (limits.ca, limits.path_length) == (True, 0)


def test_the_pin_is_the_authoritys_and_stays_over_restarts_and_renewals(own: PrivateCa) -> None:
    first = own.current(NOW)
    assert first.pin == tls_certificates.certificate_pin(x509.load_pem_x509_certificate(own.public_file.read_bytes()))
    renewed = own.current(NOW + 300 * DAY)
    assert renewed.certificates[0] != first.certificates[0]
    assert renewed.pin == first.pin


@pytest.mark.parametrize(("days", "renewed"), [(0, False), (240, False), (245, True), (400, True)])
def test_a_certificate_is_renewed_when_a_third_of_its_time_is_left(own: PrivateCa, days: int, renewed: bool) -> None:
    first = own.current(NOW)
    assert (own.current(NOW + days * DAY).certificates != first.certificates) is renewed


def test_other_names_make_another_certificate_and_the_same_names_in_another_order_do_not(own: PrivateCa) -> None:
    first = own.current(NOW)
    assert PrivateCa(own.directory, NAMES[::-1]).current(NOW).certificates == first.certificates
    other = PrivateCa(own.directory, ("other.example",)).current(NOW)
    assert other.certificates[0] != first.certificates[0]
    assert other.pin == first.pin


def test_a_damaged_certificate_is_made_anew(own: PrivateCa) -> None:
    own.current(NOW)
    own.server_file.write_bytes(b"half of a")
    own.current(NOW).certificates[0].verify_directly_issued_by(own.current(NOW).certificates[1])


def test_a_damaged_authority_is_an_error_because_machines_trust_it(own: PrivateCa) -> None:
    own.current(NOW)
    own.authority_file.write_bytes(b"half of a")
    with pytest.raises(ConfigError, match=r"ca\.pem contains no"):
        own.current(NOW)


def test_an_authoritys_key_that_others_can_read_is_refused(own: PrivateCa) -> None:
    own.current(NOW)
    own.authority_file.chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        own.current(NOW)


def test_what_is_no_name_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="neither a host name nor an IP address"):
        PrivateCa(tmp_path, ("bücher.example",)).current(NOW)
