"""Tests of VPN client profiles: parsing, rejected options, routes and DNS."""

from __future__ import annotations

import pytest

from aks_flex_node.agent.vpn.client_profile import download_link, parse_profile, unpack_profile
from aks_flex_node.agent.vpn.openvpn import client_configuration, routes, select_name_servers, up_script
from aks_flex_node.errors import FlexError
from tests.unit.agent.vpn.fakes import PROFILE, archive


def test_azure_vpn_profile_is_parsed() -> None:
    profile = parse_profile(unpack_profile(archive()))
    assert profile.remotes == (("gateway.example", 443),)
    assert (profile.protocol, profile.server_name) == ("tcp-client", ("gateway.example", "name"))
    assert profile.options == {
        "auth": "SHA256",
        "cipher": "AES-256-GCM",
        "tls-version-min": "1.2",
        "key-direction": "1",
    }
    assert set(profile.blocks) == {"ca", "tls-auth"}
    assert profile.dropped == ()


@pytest.mark.parametrize(
    "line",
    [
        "up /bin/evil",
        "--up /bin/evil",
        "UP /bin/evil",
        "down evil",
        "script-security 2",
        "plugin evil.so",
        "tls-verify evil",
        "route-up evil",
        "ipchange evil",
        "config /etc/shadow",
        "cd /",
        "management 0.0.0.0 7505",
        "setenv PATH /evil",
        "iproute /bin/evil",
        "redirect-gateway def1",
        "writepid /etc/passwd",
        "user evil",
        "auth-user-pass /etc/shadow",
        "engine evil",
        "<secret>\nx\n</secret>",
        "<auth-user-pass>\na\nb\n</auth-user-pass>",
    ],
)
def test_vpn_profile_with_dangerous_options_is_refused(line: str) -> None:
    with pytest.raises(FlexError) as caught:
        parse_profile(f"{PROFILE}{line}\n")
    assert caught.value.name == "vpn-profile-unsupported"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("remote gateway.example 443", "remote gateway.example;reboot 443"),
        ("remote gateway.example 443", "remote gateway.example 99999"),
        ("remote gateway.example 443", "remote -x 443"),
        ("remote gateway.example 443\n", ""),
        ("verify-x509-name 'gateway.example' name\n", ""),
        ("proto tcp", "proto ip"),
        ("cipher AES-256-GCM", 'cipher "a\\"'),
        ("verify-x509-name 'gateway.example' name", "verify-x509-name 'gateway.example' nothing"),
        ("</ca>", "up /bin/evil\n</ca>"),
        ("</ca>", "</CA>"),
        ("</tls-auth>", ""),
    ],
)
def test_malformed_vpn_profile_is_refused(before: str, after: str) -> None:
    assert before in PROFILE
    with pytest.raises(FlexError) as caught:
        parse_profile(PROFILE.replace(before, after, 1))
    assert caught.value.name == "vpn-profile-unsupported"


def test_unknown_vpn_profile_options_are_dropped_and_reported() -> None:
    profile = parse_profile(f"{PROFILE}compress lz4\nfuture-option yes\n# up evil\n; down evil\n")
    assert profile.dropped == ("compress", "future-option")
    assert b"compress" not in client_configuration(profile, "/pair.pem", ["10.1.0.0/16"])


@pytest.mark.parametrize(
    "content", [b"", b"no zip", archive(name="Generic/other.xml"), archive()[:60], archive("x" * (2 << 20))]
)
def test_invalid_vpn_profile_archive_is_refused(content: bytes) -> None:
    with pytest.raises(FlexError) as caught:
        unpack_profile(content)
    assert caught.value.name == "vpn-profile-unsupported"


@pytest.mark.parametrize("said", [None, "", "http://storage.example/x", "file:///etc/shadow", {"properties": {}}, 5])
def test_vpn_profile_link_that_is_not_https_is_refused(said: object) -> None:
    with pytest.raises(FlexError):
        download_link(said)


def test_vpn_client_ignores_routes_and_dns_pushed_by_the_gateway() -> None:
    text = client_configuration(parse_profile(PROFILE), "/pair.pem", ["10.1.0.0/16"]).decode().splitlines()
    assert {"route-nopull", "script-security 1", 'pull-filter ignore "redirect-gateway"'} <= set(text)
    assert [line for line in text if line.startswith("route ")] == ["route 10.1.0.0 255.255.0.0"]
    assert [line for line in text if line.startswith(("cert ", "key "))] == ["cert /pair.pem", "key /pair.pem"]
    assert not any(line.startswith("up ") for line in text)


def test_vpn_routes_cover_named_networks_and_never_the_default_route() -> None:
    found = routes(["10.1.0.0/16", "10.1.2.0/24", "0.0.0.0/0", "fd00::/8", "10.9.0.4/32"])
    assert [str(each) for each in found] == ["10.1.0.0/16", "10.9.0.4/32"]


def test_azure_internal_dns_server_is_not_used_through_the_vpn() -> None:
    assert select_name_servers((), ("168.63.129.16",), ()) == ()
    assert select_name_servers((), ("10.1.0.4",), ("10.9.9.9",)) == ("10.1.0.4",)
    assert select_name_servers(("10.2.0.4",), ("10.1.0.4",), ()) == ("10.2.0.4",)


def test_vpn_up_script_limits_dns_to_the_named_domains() -> None:
    script = up_script(["10.1.0.4"], ["api.private.example"]).decode()
    assert 'resolvectl dns "$dev" 10.1.0.4\n' in script
    assert "resolvectl domain \"$dev\" '~api.private.example'\n" in script


def test_vpn_up_script_input_is_validated_and_quoted() -> None:
    assert select_name_servers(("10.1.0.4; reboot", "$(reboot)", "fd00::1"), (), ()) == ()
    assert "'~x; reboot'" in up_script(["10.1.0.4"], ["x; reboot"]).decode()
