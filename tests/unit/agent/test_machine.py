"""Tests of machine facts from recorded text."""

from __future__ import annotations

from dataclasses import replace

import pytest

from aks_flex_node.agent import machine
from aks_flex_node.agent.machine import Machine, read_machine
from aks_flex_node.host.host import CommandResult
from tests.hosts.recorded import RecordedHost
from tests.unit.agent.builders import config_of

DEBIAN = 'PRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\nID=debian\nVERSION_ID="12"\n# a comment\nbroken line\n'
ROUTE = (
    '[{"dst":"203.0.113.9","gateway":"198.18.0.1","dev":"eth0","prefsrc":"198.18.0.5","flags":[],"uid":0,"cache":[]}]'
)
HOSTS = "203.0.113.9     STREAM cluster.example\n203.0.113.9     DGRAM  \n2001:db8::9     STREAM \n"


def test_os_release_is_parsed_with_and_without_quotes() -> None:
    found = machine.os_release(DEBIAN + "NAME='Plain'\nEMPTY=\n")
    assert (found["ID"], found["VERSION_ID"], found["NAME"], found["EMPTY"]) == ("debian", "12", "Plain", "")


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ("CapBnd:\t000001ffffffffff\n", True),
        ("CapEff:\t0\nCapBnd:\t000001fffeffffff\n", False),
        ("CapBnd:\t0000000000000000\n", False),
        ("", True),
    ],
)
def test_limits_can_be_raised_with_the_bounding_set_capability(status: str, expected: bool) -> None:
    assert machine.can_raise_limits(status) is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (ROUTE, "198.18.0.5"),
        ("", ""),
        ("[]", ""),
        ("[{}]", ""),
        ("RTNETLINK answers: Network is unreachable", ""),
        ('[{"dst":"127.0.0.1","prefsrc":"127.0.0.1"}]', ""),
        ('[{"dst":"::1","prefsrc":"::1"}]', ""),
        ('[{"dst":"2001:db8::9","prefsrc":"2001:db8::5"}]', "2001:db8::5"),
    ],
)
def test_route_source_address_is_parsed(text: str, expected: str) -> None:
    assert machine.source_address(text) == expected


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://cluster.example:443", "198.18.0.5"),
        ("https://203.0.113.9", "198.18.0.5"),
        ("https://unknown.example", ""),
        (None, ""),
    ],
)
def test_machine_address_is_the_source_address_towards_the_api_server(url: str | None, expected: str) -> None:
    answers = {
        ("getent", "ahosts", "cluster.example"): CommandResult(0, HOSTS),
        ("ip", "-j", "route", "get", "203.0.113.9"): CommandResult(0, ROUTE),
    }
    assert machine.address_towards(RecordedHost(answers=answers), url) == expected


@pytest.mark.parametrize(
    ("name", "hostname", "expected"),
    [(None, "Edge-1", "edge-1"), (None, "edge-1.site", "edge-1.site"), ("other", "Edge-1", "other")],
)
def test_node_name_is_lower_case(name: str | None, hostname: str, expected: str) -> None:
    config = config_of({"node.name": name} if name else {})
    assert Machine(hostname=hostname).node_name(config) == expected


@pytest.mark.parametrize(
    ("chosen", "systemd", "expected"),
    [
        ("auto", True, "systemd"),
        ("auto", False, "cgroupfs"),
        ("systemd", False, "systemd"),
        ("cgroupfs", True, "cgroupfs"),
    ],
)
def test_cgroup_driver_is_configured_or_detected(chosen: str, systemd: bool, expected: str) -> None:
    config = config_of({"node.kubelet.cgroupDriver": chosen})
    assert Machine(systemd=systemd).cgroup_driver(config) == expected


def test_machine_facts_are_read_from_the_host() -> None:
    files = {
        "/etc/os-release": DEBIAN,
        "/proc/sys/kernel/hostname": "Edge-1\n",
        "/proc/sys/kernel/osrelease": "6.1.0-9\n",
        "/proc/1/status": "CapBnd:\t0\n",
        "/sys/fs/cgroup/cgroup.controllers": "cpu",
        "/run/systemd/system/x": "",
        "/run/systemd/resolve/resolv.conf": "",
    }
    found = read_machine(RecordedHost(files), config_of({"node.ip": "198.18.0.7"}), "10.244.3.0/24")
    assert replace(found, arch="any") == Machine(
        arch="any",
        hostname="Edge-1",
        system="debian",
        release="12",
        kernel="6.1.0-9",
        cgroups=2,
        systemd=True,
        can_raise_limits=False,
        resolv_conf="/run/systemd/resolve/resolv.conf",
        address="198.18.0.7",
        pod_cidr="10.244.3.0/24",
    )


def test_machine_facts_have_safe_defaults_when_the_host_gives_none() -> None:
    found = read_machine(RecordedHost({"/etc/hostname": "edge-2\n"}), config_of())
    assert (found.hostname, found.cgroups, found.systemd, found.address) == ("edge-2", 1, False, "")
    assert (found.can_raise_limits, found.resolv_conf) == (True, "/etc/resolv.conf")


UNIT = "# Written\n# Program: /srv/kept/aks-flex-node\n[Unit]\n"


@pytest.mark.parametrize(
    ("files", "running", "expected"),
    [
        ({}, "", "/usr/bin/aks-flex-node"),
        ({"/srv/aks-flex-node": "x"}, "/srv/aks-flex-node", "/srv/aks-flex-node"),
        ({}, "/srv/gone/aks-flex-node", "/usr/bin/aks-flex-node"),
        ({"/usr/local/bin/aks-flex-node": "x"}, "", "/usr/local/bin/aks-flex-node"),
        (
            {machine.UNIT_FILE: UNIT, "/srv/kept/aks-flex-node": "x", "/srv/b": "x"},
            "/srv/b",
            "/srv/kept/aks-flex-node",
        ),
        ({machine.UNIT_FILE: UNIT, "/srv/b": "x"}, "/srv/b", "/srv/b"),
        ({"/opt/flex/agent/launch": UNIT, "/srv/kept/aks-flex-node": "x"}, "", "/srv/kept/aks-flex-node"),
        ({"/srv/two words": "x"}, "/srv/two words", "/usr/bin/aks-flex-node"),
        (
            {"/opt/flex/agent/0.2.0/bin/aks-flex-node": "x", "/usr/bin/aks-flex-node": "x"},
            "/opt/flex/agent/0.2.0/bin/aks-flex-node",
            "/usr/bin/aks-flex-node",
        ),
    ],
)
def test_agent_program_is_the_one_named_by_its_unit(files: dict[str, str], running: str, expected: str) -> None:
    assert machine.own_program(RecordedHost(files), "/opt/flex", running) == expected


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/usr/lib/systemd/libsystemd-shared-257.so", 257),
        ("/usr/lib/aarch64-linux-gnu/systemd/libsystemd-shared-252.so", 252),
        ("/usr/lib/systemd/libsystemd-shared-255.4-1.fc40.so", 255),
        ("/usr/lib/systemd/libsystemd-core-257.so", 0),
    ],
)
def test_systemd_version_is_read_from_its_library_name(path: str, expected: int) -> None:
    assert machine.systemd_version(RecordedHost({path: ""})) == expected
