"""Tests of a snapshot's content from output recorded on Debian 12 and 13."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from aks_flex_lab.snapshots.collector import kernel_state, network_state, service_state

if TYPE_CHECKING:
    from pathlib import Path

MOUNTINFO = """\
164 141 254:0 /tmp/root / rw,relatime shared:29 - ext4 /dev/vda rw,discard
167 164 0:48 / /dev rw,nosuid shared:32 - tmpfs tmpfs rw,size=4096k,mode=755
176 174 254:0 /run/propagate /run/host/incoming ro,relatime shared:56 master:37 - ext4 /dev/vda rw,discard
69 180 0:50 /.#proc-kmsg73098f5ab906cf23//deleted /proc/kmsg rw,nosuid - tmpfs tmpfs rw,mode=755
191 173 0:4 net:[4026532288] /run/netns/left rw shared:70 - nsfs nsfs rw
192 164 0:60 / /mnt/a\\040b rw,relatime - tmpfs tmp\\040fs rw
193 192 0:61 / /mnt/a\\040b rw,relatime - overlay overlay rw,lowerdir=/l,upperdir=/u,workdir=/w
194 173 0:62 / /run/user/0 rw - tmpfs tmpfs rw
"""


def test_mount_rows_contain_no_boot_specific_numbers() -> None:
    rows = kernel_state.parse_mounts(MOUNTINFO)

    assert rows["/"] == {
        "type": "ext4",
        "source": "/dev/vda",
        "options": "discard,relatime,rw",
        "propagation": "shared",
        "of": "/tmp/root",  # noqa: S108
    }
    assert rows["/proc/kmsg"]["of"] == "a deleted file"
    assert rows["/run/netns/left"]["of"] == "net"
    assert rows["/run/host/incoming"]["propagation"] == "master shared"
    assert rows["/run/host/incoming"]["options"] == "discard,relatime,ro"


def test_mount_rows_contain_no_numbers_of_automounts() -> None:
    line = (
        "31 22 0:27 / /proc/sys/fs/binfmt_misc rw,relatime shared:13 - autofs systemd-1 rw,fd=30,pgrp=1,pipe_ino=293"
    )
    assert kernel_state.parse_mounts(line)["/proc/sys/fs/binfmt_misc"]["options"] == "pgrp=1,relatime,rw"


def test_second_mount_on_same_path_gets_its_own_row() -> None:
    rows = kernel_state.parse_mounts(MOUNTINFO)

    assert rows["/mnt/a b"]["source"] == "tmp fs"
    assert rows["/mnt/a b (2)"]["type"] == "overlay"


def test_login_session_mounts_are_excluded() -> None:
    assert "/run/user/0" not in kernel_state.parse_mounts(MOUNTINFO)


def test_topmost_mount_determines_file_system_type() -> None:
    assert kernel_state.file_systems(MOUNTINFO)["/mnt/a b"] == "overlay"


def test_sysctls_are_read_by_dotted_name(tmp_path: Path) -> None:
    settings = {
        "kernel/panic": "10\n",
        "net/ipv4/conf/eth0.5/rp_filter": "2\n",
        "fs/file-nr": "1\n",
        "k/m": "1\t2  3\n",
    }
    for name, text in settings.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "k" / "only-written").touch(mode=0o200)

    assert kernel_state.sysctl_rows(str(tmp_path)) == {
        "kernel.panic": {"value": "10"},
        "net.ipv4.conf.eth0/5.rp_filter": {"value": "2"},
        "k.m": {"value": "1 2 3"},
    }


def test_sysctls_are_split_into_machine_and_shared_kernel_settings() -> None:
    names = (
        "net.ipv4.ip_forward",
        "kernel.hostname",
        "kernel.shmmax",
        "fs.mqueue.msg_max",
        "kernel.panic",
        "vm.swappiness",
    )

    own, shared = kernel_state.split_sysctls({name: {"value": "1"} for name in names})

    assert set(own) == {"net.ipv4.ip_forward", "kernel.hostname", "kernel.shmmax", "fs.mqueue.msg_max"}
    assert set(shared) == {"kernel.panic", "vm.swappiness"}


def test_module_rows_exclude_use_counts() -> None:
    assert kernel_state.parse_modules("overlay 151552 3 - Live 0x0\n") == {"overlay": {"state": "loaded"}}


def test_swap_rows_exclude_usage() -> None:
    text = "Filename\tType\tSize\tUsed\tPriority\n/swap\\040file  file  1024  17  -2\n"

    assert kernel_state.parse_swaps(text) == {"/swap file": {"type": "file", "kilobytes": "1024"}}


def test_cgroups_not_created_by_systemd_are_reported(tmp_path: Path) -> None:
    for name in ("kubepods/besteffort", "system.slice/left", "system.slice/a.service/own", "init.scope"):
        (tmp_path / name).mkdir(parents=True)

    rows = kernel_state.cgroup_rows({str(tmp_path): {"type": "cgroup2"}, "/nowhere": {"type": "tmpfs"}})

    assert set(rows) == {"/kubepods", "/kubepods/besteffort", "/system.slice/left"}


LOADED = """\
dev-vda.device           loaded    activating tentative /dev/vda
-.mount                  loaded    active     mounted   Root Mount
dev-hugepages.mount      loaded    active     mounted   Huge Pages File System
init.scope               loaded    active     running   System and Service Manager
session-c1.scope         loaded    active     running   Session c1 of User root
auditd.service           not-found inactive   dead      auditd.service
dbus.service             loaded    active     running   D-Bus System Message Bus
emergency.service        loaded    inactive   dead      Emergency Shell
getty@tty1.service       loaded    inactive   dead      Getty on tty1
gone.service             not-found active     running   gone.service
left.service             loaded    failed     failed    left.service
systemd-hostnamed.service loaded   active     running   Hostname Service
dbus.socket              loaded    active     running   D-Bus System Message Bus Socket
console-getty.service    masked    inactive   dead      console-getty.service
"""
UNIT_FILES = """\
dev-hugepages.mount      static          -
dbus.service             static          -
emergency.service        static          -
left.service             enabled         enabled
never-loaded.service     disabled        enabled
console-getty.service    masked          disabled
systemd-hostnamed.service static         -
dbus.socket              static          -
left.timer               enabled         enabled
"""


def test_unit_rows_combine_unit_file_and_active_state() -> None:
    assert service_state.parse_units(LOADED, UNIT_FILES) == {
        "dev-hugepages.mount": {"enabled": "static", "active": "active (mounted)"},
        "init.scope": {"active": "active (running)"},
        "dbus.service": {"enabled": "static", "active": "active (running)"},
        "emergency.service": {"enabled": "static", "active": "inactive (dead)"},
        "gone.service": {"active": "active (running)", "load": "not-found"},
        "left.service": {"enabled": "enabled", "active": "failed (failed)"},
        "never-loaded.service": {"enabled": "disabled", "active": "inactive (dead)"},
        "console-getty.service": {"enabled": "masked", "active": "inactive (dead)"},
        "systemd-hostnamed.service": {"enabled": "static"},
        "dbus.socket": {"enabled": "static", "active": "active"},
        "left.timer": {"enabled": "enabled", "active": "inactive"},
    }


@pytest.mark.parametrize(
    ("text", "unit"),
    [
        ("9:name=systemd:/system.slice/dbus.service\n8:pids:/\n0::/\n", "dbus.service"),
        ("0::/system.slice/containerd.service/kubepods/x\n", "containerd.service"),
        ("0::/user.slice/user-0.slice/user@0.service/init.scope\n", "user@0.service"),
        ("0::/user.slice/user-0.slice/session-c7.scope\n", "session"),
        ("0::/kubepods.slice/kubepods-pod1.slice/cri-9f.scope\n", "cri-9f.scope"),
        ("9:name=systemd:/../..\n0::/../..\n", "-"),
        ("", "-"),
    ],
)
def test_unit_of_process_is_parsed_from_cgroup(text: str, unit: str) -> None:
    assert service_state.parse_unit(text) == unit


def test_command_line_excludes_systemd_deserialize_option() -> None:
    assert service_state.parse_command("/sbin/init\0--deserialize=33\0--system\0") == "/sbin/init --system"
    assert service_state.parse_command("/bin/sleep\0" + "9\0") == "/bin/sleep 9"
    assert service_state.parse_command("") == ""


def one(pid: int, parent: int, unit: str, command: str, started: str = "1") -> service_state.RunningProcess:
    return service_state.RunningProcess(pid, started, parent, unit, command)


def test_process_counts_exclude_collector_and_its_ancestors() -> None:
    init = one(1, 0, "init.scope", "/sbin/init")
    sleeps = {one(pid, 1, "-", "sleep 9") for pid in (5, 6)}
    own = {one(7, 0, "-", "sh -c python3"), one(8, 7, "-", "python3 -")}
    restless = {one(9, 1, "systemd-hostnamed.service", "hostnamed"), one(10, 1, "user@0.service", "(sd-pam)")}
    everything = {init, *sleeps, *own, *restless}

    assert service_state.lasting_processes(everything, everything, myself=8) == {
        "init.scope /sbin/init": {"count": "1"},
        "- sleep 9": {"count": "2"},
    }


def test_processes_that_start_or_exit_during_collection_are_excluded() -> None:
    before, after = (
        {one(5, 1, "-", "a"), one(6, 1, "-", "b")},
        {one(5, 1, "-", "a", started="2"), one(7, 1, "-", "c")},
    )

    assert service_state.lasting_processes(before, after, myself=8) == {}


SOCKETS = """\
udp UNCONN 0      0      127.0.0.53%lo:53   0.0.0.0:* users:(("resolved",pid=57,fd=13))
tcp LISTEN 0      128    0.0.0.0:22         0.0.0.0:* users:(("sshd",pid=57,fd=3))
tcp LISTEN 0      128    127.0.0.1:41234    0.0.0.0:* users:(("containerd",pid=99,fd=9))
tcp LISTEN 0      128       [::]:22            [::]:*
"""


def test_socket_rows_replace_ephemeral_ports() -> None:
    assert set(service_state.parse_sockets(SOCKETS, "32768\t60999\n")) == {
        "udp 127.0.0.53%lo:53 resolved",
        "tcp 0.0.0.0:22 sshd",
        "tcp 127.0.0.1:chosen-by-kernel containerd",
        "tcp [::]:22 -",
    }


LINK = {
    "ifindex": 3,
    "link_index": 9,
    "ifname": "eth0",
    "flags": ["BROADCAST", "MULTICAST", "UP", "LOWER_UP"],
    "mtu": 1500,
    "master": "cni0",
    "link_type": "ether",
    "address": "ee:13:b3:b8:b1:4b",
    "linkinfo": {"info_kind": "veth"},
    "addr_info": [
        {"family": "inet", "local": "198.18.77.2", "prefixlen": 24, "valid_life_time": 4294967295},
        {"family": "inet6", "local": "fe80::ec13:b3ff:feb8:b14b", "prefixlen": 64},
    ],
}


def test_link_rows_exclude_dynamically_assigned_values() -> None:
    loop = {"ifname": "lo", "flags": ["LOOPBACK"], "mtu": 65536, "link_type": "loopback", "addr_info": [{}]}

    assert network_state.parse_links(json.dumps([LINK, loop, {}])) == {
        "eth0": {
            "kind": "veth",
            "state": "up",
            "mtu": "1500",
            "flags": "BROADCAST MULTICAST",
            "addresses": "198.18.77.2/24",
            "master": "cni0",
        },
        "lo": {"kind": "loopback", "state": "down", "mtu": "65536", "flags": "LOOPBACK"},
    }


def test_route_rows_are_keyed_by_destination() -> None:
    routes = [
        {"dst": "default", "gateway": "198.18.77.1", "dev": "eth0", "flags": ["linkdown"], "expires": 17},
        {"type": "local", "dst": "127.0.0.1", "dev": "lo", "table": "local", "scope": "host", "flags": []},
        {"dst": "192.0.2.0/24", "nexthops": [{"gateway": "a", "weight": 1, "flags": []}], "flags": ["onlink"]},
        {"dst": "192.0.2.0/24", "flags": []},
        {"dst": "fe80::/64", "dev": "eth0", "flags": []},
        {"dst": "192.0.2.9", "flags": ["cache"]},
    ]

    assert network_state.parse_routes(json.dumps(routes), "ip") == {
        "ip default dev eth0": {"gateway": "198.18.77.1"},
        "ip local 127.0.0.1 table local dev lo": {"scope": "host"},
        "ip 192.0.2.0/24": {"nexthops": "gateway a weight 1", "flags": "onlink"},
        "ip 192.0.2.0/24 (2)": {},
    }


def test_policy_rule_rows_contain_the_whole_rule() -> None:
    rules = [{"priority": 32765, "src": "192.0.2.7", "table": "100"}, {"priority": 0, "src": "all", "table": "local"}]

    assert network_state.parse_rules(json.dumps(rules), "ip") == {
        "ip priority 32765, src 192.0.2.7, table 100": {"count": "1"},
        "ip priority 0, src all, table local": {"count": "1"},
    }


def test_output_of_missing_program_gives_no_rows() -> None:
    assert network_state.parse_links("") == {}
    assert network_state.parse_routes("", "ip") == {}
    assert service_state.parse_units("", "") == {}
    assert service_state.parse_sockets("", "") == {}
