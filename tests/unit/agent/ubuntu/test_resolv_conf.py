"""DNS servers of pods for the ways in which Ubuntu machines are set up: netplan, systemd-resolved, none of it."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from aks_flex_node.agent.components.kubelet import kubelet_settings
from aks_flex_node.agent.machine import RESOLV_CONF, RESOLVED, is_loopback, name_servers, read_machine
from tests.unit.agent.preflight.builders import config, severities, told
from tests.unit.agent.ubuntu.hosts import RELEASES, preflight, ubuntu

STUB = "/run/systemd/resolve/stub-resolv.conf"
STATIC = "nameserver 192.0.2.1\nsearch example\n"
LOCAL_STUB = "nameserver 127.0.0.53\noptions edns0 trust-ad\n"


@dataclass(frozen=True)
class Layout:
    name: str
    expected: str
    files: dict[str, str | None] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)


NO_RESOLVED: dict[str, str | None] = {STUB: None, RESOLVED: None}
LAYOUTS = [
    Layout("as installed: a link to the stub", RESOLVED),
    Layout("absolute link to the stub", RESOLVED, links={RESOLV_CONF: STUB}),
    Layout("link to the servers of resolved", RESOLVED, links={RESOLV_CONF: f"..{RESOLVED}"}),
    Layout("copy of the stub, by an image builder", RESOLVED, {RESOLV_CONF: LOCAL_STUB}),
    Layout("second stub of resolved", RESOLVED, {RESOLV_CONF: "nameserver 127.0.0.54\n"}),
    Layout("image that has not booted", RESOLVED, NO_RESOLVED),
    Layout("servers written by hand, resolved runs", RESOLV_CONF, {RESOLV_CONF: STATIC}),
    Layout("resolved was stopped, its file is stale", RESOLV_CONF, {RESOLV_CONF: STATIC, STUB: None}),
    Layout("without resolved", RESOLV_CONF, {RESOLV_CONF: STATIC, **NO_RESOLVED}),
    Layout("resolvconf", RESOLV_CONF, {"/run/resolvconf/resolv.conf": STATIC, **NO_RESOLVED},
           {RESOLV_CONF: "../run/resolvconf/resolv.conf"}),
    Layout("stub before a server of the network", RESOLVED, {RESOLV_CONF: LOCAL_STUB + STATIC}),
]  # fmt: skip


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: str(layout.name))
def test_kubelet_gives_pods_servers_that_they_reach(release: str, layout: Layout) -> None:
    host = ubuntu(release, layout.files, layout.links)
    settings = kubelet_settings(config(), read_machine(host, config()))

    assert settings["resolvConf"] == layout.expected
    assert "pods cannot reach" not in told(preflight(host), "dns")


@pytest.mark.parametrize("release", RELEASES)
def test_preflight_warns_about_a_dns_server_on_loopback(release: str) -> None:
    host = ubuntu(release, {RESOLV_CONF: "nameserver 127.0.0.1\nnameserver ::1\n", **NO_RESOLVED})

    assert severities(preflight(host), "dns") == ["warning", "ok"]
    assert "DNS servers that pods cannot reach: 127.0.0.1, ::1." in told(preflight(host), "dns")


def test_servers_are_parsed_from_resolv_conf() -> None:
    text = (
        "# nameserver 192.0.2.9\nnameserver\t192.0.2.1\nnameserver fe80::1%eth0 \n nameserver 192.0.2.2\nsearch a b\n"
    )

    assert name_servers(text) == ["192.0.2.1", "fe80::1%eth0"]
    assert [is_loopback(each) for each in ("127.0.0.53", "::1", "fe80::1%eth0", "192.0.2.1", "name", "")] == [
        True,
        True,
        False,
        False,
        False,
        False,
    ]
