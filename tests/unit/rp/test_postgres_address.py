"""Tests of the address of the PostgreSQL database."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

import pytest

from aks_flex_lab.pki import CertificateAuthority
from aks_flex_rp.store.model import StoreError
from aks_flex_rp.store.postgres_address import SOCKET_DIRECTORIES, parse_address, without_secrets

if TYPE_CHECKING:
    from pathlib import Path

SERVER = "postgresql://flex:canary@db.example:5432/flex"


def refused(text: str, env: dict[str, str] | None = None) -> StoreError:
    with pytest.raises(StoreError) as caught:
        parse_address(text, env or {})
    assert "canary" not in f"{caught.value}{caught.value.hint}"
    return caught.value


@pytest.mark.parametrize("mode", ["disable", "allow", "prefer", "require", "verify-ca", "no-such-mode"])
def test_address_that_does_not_verify_the_server_is_refused(mode: str) -> None:
    """Attack: someone on the network answers as the database."""
    error = refused(f"{SERVER}?sslmode={mode}")

    assert error.name == "database-tls-required"
    assert f"sslmode={mode}" in error.message
    assert refused(SERVER, {"PGSSLMODE": mode}).name == "database-tls-required"


@pytest.mark.parametrize("text", [SERVER, f"{SERVER}?sslmode=verify-full", f"{SERVER}?sslrootcert=system"])
def test_server_on_the_network_is_verified_by_name(text: str) -> None:
    address = parse_address(text, {})

    assert isinstance(address.tls, ssl.SSLContext)
    assert address.tls.check_hostname
    assert address.tls.verify_mode is ssl.CERT_REQUIRED
    assert "ssl" not in address.dsn


@pytest.mark.parametrize(
    "text",
    [
        "postgresql://flex@%2Frun%2Fpostgresql/flex",
        "postgresql:///flex?host=/run/postgresql",
        "postgresql:///flex?host=/run/postgresql&sslmode=verify-full",
    ],
)
def test_unix_socket_needs_no_tls(text: str) -> None:
    address = parse_address(text, {})

    assert address.tls is False
    assert address.hosts is None


def test_address_without_host_means_the_unix_socket() -> None:
    assert parse_address("postgresql:///flex", {}).connect_options()["host"] == list(SOCKET_DIRECTORIES)
    assert isinstance(parse_address("postgresql:///flex", {"PGHOST": "db.example"}).tls, ssl.SSLContext)


def test_one_host_on_the_network_among_sockets_is_verified() -> None:
    address = parse_address("postgresql:///flex?host=/run/postgresql,db.example", {})

    assert isinstance(address.tls, ssl.SSLContext)


@pytest.mark.parametrize(
    "name", ["sslcompression", "sslcertmode", "ssl", "channel_binding", "require_auth", "gssencmode", "service"]
)
def test_unknown_parameter_that_restricts_a_connection_is_refused(name: str) -> None:
    error = refused(f"{SERVER}?{name}=1")

    assert error.name == "database-address-invalid"
    assert f"the parameter {name} is not supported" in error.message


def test_certificates_of_the_address_are_used(tmp_path: Path) -> None:
    authority = CertificateAuthority(tmp_path)
    authority.ensure()
    pair = authority.issue("client", "client")
    words = f"sslrootcert={authority.certificate}&sslcert={pair.certificate}&sslkey={pair.key}&sslpassword=x"
    address = parse_address(f"{SERVER}?{words}&ssl_min_protocol_version=TLSv1.3", {})

    assert isinstance(address.tls, ssl.SSLContext)
    assert address.tls.minimum_version is ssl.TLSVersion.TLSv1_3
    assert len(address.tls.get_ca_certs()) == 1
    assert str(tmp_path) not in address.dsn


@pytest.mark.parametrize("name", ["sslrootcert", "sslcrl", "sslcert"])
def test_certificate_file_that_is_missing_is_named(name: str, tmp_path: Path) -> None:
    error = refused(f"{SERVER}?{name}={tmp_path}/missing")

    assert error.name == "database-address-invalid"
    assert f"{name}={tmp_path}/missing" in error.message


def test_invalid_combination_is_refused() -> None:
    assert "sslkey is set without sslcert" in refused(f"{SERVER}?sslkey=/x").message
    assert "TLSv1.0" in refused(f"{SERVER}?ssl_min_protocol_version=TLSv1.0").message
    assert refused("mysql://db/x").name == "database-address-invalid"


def test_insecure_setting_is_loud(caplog: pytest.LogCaptureFixture) -> None:
    address = parse_address(f"{SERVER}?sslmode=disable", {}, insecure=True)

    assert address.tls is None
    assert address.dsn.endswith("?sslmode=disable")
    assert "anyone on the network between can read and change the database" in caplog.text
    assert "canary" not in caplog.text


def test_messages_show_no_password() -> None:
    shown = without_secrets(f"{SERVER}?sslmode=verify-full&sslpassword=canary&password=canary")

    assert shown == "postgresql://flex@db.example:5432/flex?sslmode=verify-full"
