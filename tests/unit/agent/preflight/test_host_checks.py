"""Tests of the machine checks: system, name, memory, CPUs, kernel and programs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from aks_flex_node.agent.preflight.host_checks import memory_total
from aks_flex_node.agent.preflight.kernel_checks import enabled_controllers, swap_devices
from aks_flex_node.host.host import CommandResult
from tests.unit.agent.preflight.builders import MACHINE, config, findings, fit, host, severities, told


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
    assert memory_total("MemFree: 1 kB\n") is None


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
    assert swap_devices(table) == ["/dev/sda2", "/swapfile"]


def test_preflight_notes_a_missing_capability_without_failing() -> None:
    assert severities(with_facts(can_raise_limits=False), "capabilities") == ["ok"]
    assert "CAP_SYS_RESOURCE" in told(with_facts(can_raise_limits=False), "capabilities")


def test_preflight_names_packages_for_missing_programs() -> None:
    lacking = fit(host=host(without=("/usr/sbin/iptables", "/usr/sbin/ip", "/usr/sbin/conntrack")))

    needed, useful = findings(lacking, "programs")
    assert (needed.severity.value, useful.severity.value) == ("error", "warning")
    assert needed.remedy == "Run `sudo apt-get install -y iproute2 iptables`."
    assert "conntrack" in useful.message
