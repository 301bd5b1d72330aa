"""Tests of certificates, names in /etc/hosts and DNS, OpenVPN's messages, and complete removal."""

from __future__ import annotations

import struct
from datetime import datetime, timedelta, timezone

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import ExtendedKeyUsageOID

from aks_flex_node.agent import certificates
from aks_flex_node.agent.components.vpn import COMPONENT, HOSTS, NAME, UNIT, without_managed_lines
from aks_flex_node.agent.vpn import dependencies, local_state, openvpn
from aks_flex_node.agent.vpn.client_certificate import make_client_certificate, root_data, same_certificate
from aks_flex_node.agent.vpn.openvpn import TunnelState, diagnose, parse_state
from aks_flex_node.host.actions import EditFile, StartUnit, WriteFile
from aks_flex_node.host.host import UnitState
from tests.unit.agent.builders import DATA, MACHINE, config_of, empty_host, engine_on, text_of

HOSTS_TEXT = b"127.0.0.1 localhost\n::1 localhost"
VPN: dict[str, object] = {"azure.vpn.enabled": True}


def test_client_certificate_is_signed_by_a_root_whose_key_is_discarded() -> None:
    pair = make_client_certificate("edge 1")
    client, root = x509.load_pem_x509_certificates(pair.pem)
    client.verify_directly_issued_by(root)
    assert root.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert not client.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert list(client.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value) == [
        ExtendedKeyUsageOID.CLIENT_AUTH
    ]
    key = client.public_key()
    assert isinstance(key, rsa.RSAPublicKey)
    assert key.key_size == 2048
    assert pair.pem.count(b"PRIVATE KEY-----\n") == 2  # one BEGIN, one END
    assert pair.name.startswith("aks-flex-node-edge-1-")
    assert same_certificate(root_data(pair.pem), pair.root)
    _, end = certificates.validity(pair.pem) or (None, None)
    assert end
    assert timedelta(days=364) < end - datetime.now(timezone.utc) <= timedelta(days=365)
    assert b"PRIVATE" not in repr(pair).encode()


def test_certificates_are_compared_without_line_breaks() -> None:
    assert same_certificate("YWJj", "YW\nJj\n")
    assert not same_certificate("YWJj", "YWJk")
    assert not same_certificate("YWJj", "?")


def test_hosts_entry_is_added_replaced_and_removed_cleanly() -> None:
    once = dependencies.with_hosts_entry(HOSTS_TEXT, "api.example", "10.1.0.10")
    assert once == b"10.1.0.10 api.example # aks-flex-node-vpn\n" + HOSTS_TEXT
    assert dependencies.with_hosts_entry(once, "api.example", "10.1.0.11").count(b"api.example") == 1
    assert without_managed_lines(once) == HOSTS_TEXT


def packet(number: int, *answers: bytes, flags: int = 0x8180) -> bytes:
    head = struct.pack(">6H", number, flags, 1, len(answers), 0, 0)
    return head + dependencies.encode_query(number, "api.example")[12:] + b"".join(answers)


A_RECORD = b"\xc0\x0c" + struct.pack(">2HIH", 1, 1, 60, 4) + bytes([10, 1, 0, 10])
ALIAS = b"\xc0\x0c" + struct.pack(">2HIH", 5, 1, 60, 2) + b"\xc0\x0c"


@pytest.mark.parametrize(
    ("told", "address"),
    [
        (packet(7, A_RECORD), "10.1.0.10"),
        (packet(7, ALIAS, A_RECORD), "10.1.0.10"),
        (packet(7), ""),
        (packet(8, A_RECORD), ""),
        (packet(7, A_RECORD, flags=0x8183), ""),
        (packet(7, A_RECORD)[:-2], ""),
        (b"", ""),
        (packet(7, A_RECORD)[:13], ""),
    ],
)
def test_dns_answer_is_decoded_safely(told: bytes, address: str) -> None:
    assert dependencies.decode_answer(7, told) == address


def test_openvpn_management_state_is_parsed() -> None:
    said = ">INFO:OpenVPN Management\r\n1794757971,CONNECTED,SUCCESS,192.168.100.2,198.18.0.60,443,,\r\nEND\r\n"
    assert parse_state(said) == TunnelState("CONNECTED", 1794757971.0, "192.168.100.2")
    assert parse_state("1794757971,RECONNECTING,ping-restart,,,,,\nEND\n") == TunnelState(
        "RECONNECTING", 1794757971.0
    )
    assert parse_state("END") is None


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ("AUTH: Received control message: AUTH_FAILED", "vpn-connection-rejected"),
        ("VERIFY ERROR: depth=0, error=certificate is not yet valid: CN=x", "vpn-gateway-untrusted"),
        ("TCP: connect to [AF_INET]198.51.100.7:443 failed: Connection timed out", "vpn-gateway-unreachable"),
        ("RESOLVE: Cannot resolve host address: gateway.example:443", "vpn-gateway-unreachable"),
        ("ERROR: Cannot open TUN/TAP dev /dev/net/tun: No such file or directory", "vpn-tun-device-missing"),
        ("Connection reset, restarting [0]", "vpn-connection-rejected"),
        ("TLS Error: TLS handshake failed", "vpn-connection-rejected"),
        ("Options error: something", "vpn-not-connected"),
        ("", "vpn-not-connected"),
    ],
)
def test_tunnel_failure_is_diagnosed_from_the_openvpn_log(said: str, name: str) -> None:
    error = diagnose(f"2026-11-15 15:52:51 {said}\nMANAGEMENT: Client disconnected\n" if said else "")
    assert error.name == name
    assert said in error.message
    assert "2026" not in error.message


def test_disabled_vpn_plans_nothing() -> None:
    assert engine_on(empty_host()).plan(COMPONENT).actions == ()
    assert local_state.status(empty_host(), config_of()) == {"status": "disabled"}


def test_disabled_vpn_is_stopped_and_can_be_enabled_again() -> None:
    host = empty_host()
    engine_on(host, config_of(VPN)).apply(COMPONENT)
    host.apply(WriteFile(f"{DATA}/vpn/client.conf", b"remote x", 0o600))
    engine_on(host).apply(COMPONENT)
    assert host.stat(UNIT) is None
    assert host.read(f"{DATA}/vpn/client.conf") == b"remote x"
    engine_on(host, config_of(VPN)).apply(COMPONENT)
    assert any(isinstance(one, StartUnit) for one in host.done)
    engine = engine_on(host)
    engine.remove(COMPONENT, print)
    assert host.stat(f"{DATA}/vpn") is None


def test_vpn_unit_does_not_start_without_its_client_config() -> None:
    spec = COMPONENT.desired(config_of(VPN), MACHINE)
    unit = text_of(spec, UNIT)
    assert f"ExecStart=/usr/sbin/openvpn --config {DATA}/vpn/client.conf\n" in unit
    assert f"ConditionPathExists={DATA}/vpn/client.conf\n" in unit
    assert "Restart=always" in unit
    host = empty_host()
    engine = engine_on(host, config_of(VPN))
    engine.apply(COMPONENT)
    assert not host.unit(NAME).running


def test_unrecorded_hosts_entry_is_removed_with_the_vpn() -> None:
    host = empty_host()
    host.apply(EditFile(HOSTS, dependencies.with_hosts_entry(HOSTS_TEXT, "api.example", "10.1.0.10")))
    problems: list[str] = []
    engine_on(host, config_of(VPN)).remove(COMPONENT, problems.append)
    assert (host.read(HOSTS), problems) == (HOSTS_TEXT, [])


@pytest.mark.parametrize(
    ("active", "tunnel", "status"),
    [
        ("active", TunnelState("CONNECTED", 5.0, "192.168.100.2"), "Connected"),
        ("active", TunnelState("RECONNECTING", 5.0), "Connecting"),
        ("active", None, "Connecting"),
        ("activating", None, "Connecting"),
        ("failed", None, "Disconnected"),
        ("inactive", None, "Disconnected"),
    ],
)
def test_vpn_status_combines_unit_state_and_tunnel_state(
    active: str, tunnel: openvpn.TunnelState | None, status: str
) -> None:
    host = empty_host()
    config = config_of(VPN)
    assert local_state.status(host, config, lambda: None)["status"] == "NotConfigured"
    engine_on(host, config).apply(COMPONENT)
    host.apply(EditFile(f"{DATA}/vpn/client.conf", b"client\n", 0o600))
    host._units[NAME] = UnitState(NAME, exists=True, active=active)
    assert local_state.status(host, config, lambda: tunnel)["status"] == status
