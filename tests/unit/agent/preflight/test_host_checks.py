"""Tests of the machine checks: system, name, memory, CPUs, disks, kernel, its settings and programs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from aks_flex_node.agent.preflight.disk_checks import file_system_type, threshold_bytes, volumes
from aks_flex_node.agent.preflight.interfaces import FileSystemInfo
from aks_flex_node.agent.preflight.kernel_checks import enabled_controllers, parse_sysctl_file
from aks_flex_node.host.host import CommandResult
from aks_flex_node.host.system import parse_memory_total, parse_swaps
from tests.unit.agent.preflight.builders import GIB, MACHINE, ROOM, config, findings, fit, host, severities, told


def with_facts(**changes: Any) -> Any:
    """Returns the passing machine with changed facts."""
    return fit(machine=replace(MACHINE, **changes))


def with_files(**files: str) -> Any:
    """Returns the passing machine with changed files in /proc."""
    return fit(host=host({f"/proc/{name}": text for name, text in files.items()}))


def test_preflight_requires_root() -> None:
    assert severities(fit(uid=1000), "root") == ["error"]


@pytest.mark.parametrize(
    ("system", "release", "severity"),
    [
        ("debian", "12", "ok"),
        ("debian", "13", "ok"),
        ("ubuntu", "22.04", "ok"),
        ("ubuntu", "24.04", "ok"),
        ("ubuntu", "20.04", "warning"),
        ("debian", "", "warning"),
        ("fedora", "41", "warning"),
        ("", "", "warning"),
    ],
)
def test_preflight_rates_the_operating_system_release(system: str, release: str, severity: str) -> None:
    assert severities(with_facts(system=system, release=release), "os") == [severity]


@pytest.mark.parametrize(("arch", "severity"), [("amd64", "ok"), ("arm64", "ok"), ("riscv64", "error")])
def test_preflight_rates_the_cpu_architecture(arch: str, severity: str) -> None:
    assert severities(with_facts(arch=arch), "architecture") == [severity]


def test_preflight_reports_a_machine_not_booted_by_systemd() -> None:
    situation = fit(machine=replace(MACHINE, systemd=False), host=host({"/proc/1/comm": "runit\n"}))

    assert "init process of this machine is runit" in told(situation, "systemd")


@pytest.mark.parametrize(
    ("hostname", "severity", "words"),
    [
        ("edge-1", "ok", "edge-1"),
        ("EDGE-One", "ok", "The node will be named edge-one"),
        ("edge_1", "error", "cannot be used as the node name"),
        ("localhost", "error", "is not set"),
        ("LocalHost", "error", "is not set"),
        ("", "error", "(empty)"),
        ("-edge", "error", "cannot be used as the node name"),
        ("e" * 64, "error", "64 characters"),
    ],
)
def test_preflight_requires_a_host_name_valid_as_a_node_name(hostname: str, severity: str, words: str) -> None:
    (found,) = findings(with_facts(hostname=hostname), "hostname")

    assert found.severity.value == severity
    assert words in found.message


def test_preflight_checks_the_configured_node_name_first() -> None:
    settings = config({"node": {"name": "edge-7"}})

    assert severities(fit(config=settings, machine=replace(MACHINE, hostname="localhost")), "hostname") == ["ok"]
    assert severities(fit(config=config({"node": {"name": "Edge_7"}})), "hostname") == ["error"]


@pytest.mark.parametrize(("kib", "severity"), [(500_000, "error"), (1_000_000, "warning"), (2_000_000, "ok")])
def test_preflight_rates_the_memory_size(kib: int, severity: str) -> None:
    assert severities(with_files(meminfo=f"MemTotal:  {kib} kB\n"), "memory") == [severity]


def test_preflight_warns_when_the_memory_size_is_unknown() -> None:
    assert severities(fit(host=host(without=("/proc/meminfo",))), "memory") == ["warning"]
    assert parse_memory_total("MemFree: 1 kB\n") is None


@pytest.mark.parametrize(
    ("online", "severity"), [("", "error"), ("0\n", "warning"), ("0-1\n", "ok"), ("0,4\n", "ok")]
)
def test_preflight_rates_the_number_of_cpus(online: str, severity: str) -> None:
    assert severities(fit(host=host({"/sys/devices/system/cpu/online": online})), "cpu") == [severity]


@pytest.mark.parametrize(
    ("kernel", "severity"),
    [("4.15.0-1", "error"), ("4.19.0", "warning"), ("5.4.0-150-generic", "ok"), ("6.1", "ok"), ("odd", "warning")],
)
def test_preflight_rates_the_kernel_version(kernel: str, severity: str) -> None:
    assert severities(with_facts(kernel=kernel), "kernel") == [severity]


def test_preflight_reports_missing_cgroups_or_controllers() -> None:
    unified = "/sys/fs/cgroup/cgroup.controllers"

    assert severities(fit(host=host(without=(unified,))), "cgroups") == ["error"]
    assert "controllers memory are missing" in told(fit(host=host({unified: "cpuset cpu io pids\n"})), "cgroups")


def test_preflight_warns_of_cgroup_v1() -> None:
    table = "#subsys_name\thierarchy\tnum_cgroups\tenabled\n"
    table += "".join(f"{name}\t1\t1\t1\n" for name in ("cpuset", "cpu", "cpuacct", "memory", "pids"))
    folders = {f"/sys/fs/cgroup/{name}/tasks": "" for name in ("cpu,cpuacct", "cpuset", "memory", "pids")}
    situation = fit(host=host({"/proc/cgroups": table, **folders}, without=("/sys/fs/cgroup/cgroup.controllers",)))

    assert severities(situation, "cgroups") == ["warning"]
    assert enabled_controllers(table + "hugetlb\t0\t1\t0\n") == {"cpuset", "cpu", "cpuacct", "memory", "pids"}


def test_preflight_accepts_loaded_built_in_and_loadable_modules() -> None:
    ask: dict[tuple[str, ...], CommandResult] = {
        ("modprobe", "-n", "-q", "--", name): CommandResult(0) for name in ("overlay", "br_netfilter")
    }
    built_in = {
        "/proc/filesystems": "\text4\nnodev\toverlay\n",
        "/proc/sys/net/bridge/bridge-nf-call-iptables": "0\n",
    }

    assert severities(fit(host=host({"/proc/modules": ""}, answers=ask)), "modules") == ["ok"]
    assert severities(fit(host=host({"/proc/modules": "", **built_in})), "modules") == ["ok"]


def test_preflight_reports_missing_modules_with_the_remedy() -> None:
    installed = {"/proc/modules": "", f"/lib/modules/{MACHINE.kernel}/modules.dep": ""}

    assert "does not have these modules: overlay, br_netfilter" in told(with_files(modules=""), "modules")
    assert "Reboot" in told(with_files(modules=""), "modules")
    assert "linux-modules-extra" in told(fit(host=host(installed)), "modules")


def test_preflight_warns_of_swap() -> None:
    table = "Filename\tType\tSize\tUsed\tPriority\n/dev/sda2 partition 1 0 -2\n/swapfile file 1 0 -3\n"

    assert severities(with_files(swaps=table), "swap") == ["warning"]
    assert list(parse_swaps(table)) == ["/dev/sda2", "/swapfile"]


def test_preflight_notes_a_missing_capability_without_failing() -> None:
    assert severities(with_facts(can_raise_limits=False), "capabilities") == ["ok"]
    assert "CAP_SYS_RESOURCE" in told(with_facts(can_raise_limits=False), "capabilities")


def test_preflight_names_packages_for_missing_programs() -> None:
    lacking = fit(host=host(without=("/usr/sbin/iptables", "/usr/sbin/ip", "/usr/sbin/conntrack")))

    needed, useful = findings(lacking, "programs")
    assert (needed.severity.value, useful.severity.value) == ("error", "warning")
    assert needed.remedy == "Run `sudo apt-get install -y iproute2 iptables`."
    assert "conntrack" in useful.message


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


NODE = frozenset({"kubelet.service"})


@pytest.mark.parametrize(("free", "expected"), [(1.0, ["error"]), (4.0, ["warning"]), (50.0, ["ok"])])
def test_preflight_requires_enough_free_space_on_a_single_disk(free: float, expected: list[str]) -> None:
    small = FileSystemInfo(1, int(free * GIB), int(free * GIB) + 1)

    assert severities(fit(file_system=lambda _: small), "disk") == expected


def test_preflight_does_not_require_install_space_on_a_joined_node() -> None:
    assert severities(fit(file_system=lambda _: FileSystemInfo(1, GIB, 2 * GIB), owned_services=NODE), "disk") == [
        "ok"
    ]


def test_preflight_checks_each_file_system_against_its_own_needs() -> None:
    def room(path: str) -> FileSystemInfo | None:
        if path == "/var/lib":
            return FileSystemInfo(2, 100 << 20, 200 << 20)
        return ROOM if path == "/" else None

    situation = fit(file_system=room)

    assert [len(volume.needs) for volume in volumes(situation)] == [2, 3]
    assert "100 MiB is free for /var/lib/aks-flex-node, /var/lib/containerd and 1 more" in told(situation, "disk")


def test_preflight_reports_disk_that_would_be_under_eviction_pressure() -> None:
    assert "imagefs.available < 15%" in told(
        fit(file_system=lambda _: FileSystemInfo(1, 12 * GIB, 100 * GIB)), "disk"
    )
    assert "nodefs.inodesFree < 5%" in told(fit(file_system=lambda _: replace(ROOM, inodes_free=20_000)), "disk")


def test_preflight_reports_low_inodes_only_where_inodes_are_counted() -> None:
    assert "Only 5 inodes are free" in told(fit(file_system=lambda _: replace(ROOM, inodes_free=5)), "disk")
    assert severities(fit(file_system=lambda _: replace(ROOM, inodes_free=0, inodes=0)), "disk") == ["ok"]


def test_preflight_reports_read_only_and_noexec_disks() -> None:
    assert "is read-only" in told(fit(file_system=lambda _: replace(ROOM, read_only=True)), "disk")
    assert "mounted noexec" in told(fit(file_system=lambda _: replace(ROOM, noexec=True)), "disk")


@pytest.mark.parametrize(("kind", "severity"), [("overlay", "error"), ("nfs4", "error"), ("tmpfs", "warning")])
def test_preflight_reports_file_system_unsuitable_for_overlayfs(kind: str, severity: str) -> None:
    mounts = f"1 1 8:1 / / rw - ext4 /dev/sda1 rw\n2 1 0:9 / /var/lib rw - {kind} x rw\n"

    assert severities(fit(host=host({"/proc/self/mountinfo": mounts})), "disk") == [severity]
    moved = config({"paths": {"containerdDir": "/data/containerd"}})
    assert severities(fit(host=host({"/proc/self/mountinfo": mounts}), config=moved), "disk") == ["ok"]


def test_file_system_type_comes_from_the_nearest_latest_mount() -> None:
    mounts = (
        "1 1 8:1 / / rw - ext4 /dev/sda1 rw\n"
        "2 1 8:2 / /var rw shared:1 master:2 - xfs /dev/sda2 rw\n"
        "3 1 8:3 / /var/libx rw - btrfs /dev/sda3 rw\n"
        "4 1 8:2 / /var rw - f2fs /dev/sda4 rw\n"
    )

    assert file_system_type(mounts, "/var/lib/containerd") == "f2fs"
    assert file_system_type(mounts, "/var/libx") == "btrfs"
    assert file_system_type(mounts, "/opt") == "ext4"
    assert file_system_type("", "/opt") == ""


@pytest.mark.parametrize(
    ("text", "expected"), [("10%", 100), ("1Gi", 1 << 30), ("500", 500), ("2k", 2000), ("", 0), ("much", 0)]
)
def test_eviction_threshold_is_parsed(text: str, expected: float) -> None:
    assert threshold_bytes(text, 1000) == expected
