"""Tests of settings of other programs that would override the node's at the next boot."""

from __future__ import annotations

import pytest

from aks_flex_node.agent.preflight.kernel_checks import parse_sysctl_file
from tests.unit.agent.preflight.builders import fit, host, severities

FORWARD = "net.ipv4.ip_forward = 0\n"


@pytest.mark.parametrize(
    ("path", "text", "severity"),
    [
        ("/etc/sysctl.conf", FORWARD, "warning"),
        ("/etc/sysctl.conf", "net.ipv4.ip_forward=1\n", "ok"),
        ("/etc/sysctl.conf", "vm.swappiness = 10\n", "ok"),
        ("/etc/sysctl.d/99-zzz.conf", FORWARD, "warning"),
        ("/run/sysctl.d/99-zzz.conf", FORWARD, "warning"),
        ("/usr/lib/sysctl.d/zz.conf", "-net/ipv4/ip_forward=0\n", "warning"),
        ("/etc/sysctl.d/99-sysctl.conf", FORWARD, "ok"),
        ("/etc/sysctl.d/99-zzz.conf.old", FORWARD, "ok"),
        ("/etc/sysctl.d/99-zzz.conf", f"#{FORWARD};{FORWARD}", "ok"),
        ("/etc/sysctl.d/99-zzz.conf", "net.ipv4.conf.*.rp_filter = 1\n", "ok"),
    ],
)
def test_preflight_warns_of_a_later_sysctl_file_with_another_value(path: str, text: str, severity: str) -> None:
    assert severities(fit(host=host({path: text})), "sysctl") == [severity]


def test_sysctl_file_in_etc_overrides_the_same_name_in_usr_lib() -> None:
    files = {"/etc/sysctl.d/99-zzz.conf": "", "/usr/lib/sysctl.d/99-zzz.conf": FORWARD}
    assert severities(fit(host=host(files)), "sysctl") == ["ok"]


def test_sysctl_keys_are_parsed_in_dot_and_slash_notation() -> None:
    assert parse_sysctl_file("net/ipv4/conf/eth0.1/x = 1\n a.b =  1   2 \nnonsense\n") == {
        "net.ipv4.conf.eth0/1.x": "1",
        "a.b": "1 2",
    }
