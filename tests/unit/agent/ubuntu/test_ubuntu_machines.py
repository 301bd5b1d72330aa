"""What the agent reads on Ubuntu machines: facts, kernel settings, swap, snaps, other runtimes, AppArmor."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from aks_flex_node.agent.components import runc, system
from aks_flex_node.agent.components.catalog import SEQUENCE
from aks_flex_node.agent.machine import identify_machine, read_machine
from aks_flex_node.agent.preflight.disk_checks import file_system_type
from aks_flex_node.agent.preflight.registry import CHECKS
from aks_flex_node.agent.reconcile.resources import ProgramTree, Symlink
from aks_flex_node.host.mounts import MOUNTINFO, mount_points, mounts_below
from tests.unit.agent.preflight.builders import config, findings, severities, told
from tests.unit.agent.ubuntu.hosts import RELEASES, preflight, recorded, ubuntu

OS_RELEASES: list[dict[str, Any]] = yaml.safe_load((Path(__file__).parent / "os-release.yaml").read_text())
FACTS = {
    "22.04": ("ubuntu", "22.04", "edge-22", "5.15.0-139-generic", 249),
    "24.04": ("ubuntu", "24.04", "edge-24", "6.8.0-64-generic", 255),
}
LOCAL_CHECKS = [check.name for check in CHECKS if not check.remote]
MICROK8S_MOUNT = (
    "800 29 0:60 / /var/snap/microk8s/common/var/lib/kubelet/pods/1/volumes/token rw,relatime - tmpfs tmpfs rw\n"
)


@pytest.mark.parametrize("case", OS_RELEASES, ids=lambda case: str(case["name"]))
def test_os_release_is_rated_by_its_id_and_version(case: dict[str, Any]) -> None:
    host = ubuntu("22.04", {"/usr/lib/os-release": case["text"]})
    machine = read_machine(host, config())

    assert (machine.system, machine.release) == (case["system"], case["release"])
    assert severities(preflight(host), "os") == [case["severity"]]


@pytest.mark.parametrize("release", RELEASES)
def test_facts_of_an_ubuntu_machine_are_read(release: str) -> None:
    found = read_machine(ubuntu(release), config())

    assert (found.system, found.release, found.hostname, found.kernel, found.systemd_version) == FACTS[release]
    assert (found.cgroups, found.systemd, found.can_raise_limits) == (2, True, True)
    identity = identify_machine(ubuntu(release, {"/etc/machine-id": "0123456789abcdef0123456789abcdef\n"}), None)
    assert identity
    assert identity.os.startswith(f"Ubuntu {release}.")


@pytest.mark.parametrize("release", RELEASES)
def test_cloud_image_passes_preflight_with_two_warnings(release: str) -> None:
    machine = preflight(ubuntu(release))
    found = {name: severities(machine, name) for name in LOCAL_CHECKS}

    assert {name: each for name, each in found.items() if set(each) > {"ok"} or "warning" in each} == {
        "swap": ["warning"],
        "programs": ["warning"],
    }
    assert not [name for name, each in found.items() if "error" in each]
    assert "/swap.img" in told(machine, "swap")
    assert "apt-get install -y conntrack socat" in told(machine, "programs")


@pytest.mark.parametrize("release", RELEASES)
def test_swap_line_of_cloud_init_is_disabled_and_restored(release: str) -> None:
    table = recorded(release)["files"][system.FSTAB].encode()
    without = system.without_swap(table)

    assert f"{system.DISABLED_LINE_PREFIX}/swap.img\tnone\tswap\tsw,comment=cloudconfig".encode() in without
    assert len(without) == len(table) + len(system.DISABLED_LINE_PREFIX)
    assert system.with_swap(without) == table


@pytest.mark.parametrize("release", RELEASES)
def test_sysctl_file_that_is_read_last_is_found(release: str) -> None:
    changed = {"/etc/sysctl.conf": "net.ipv4.ip_forward=0\n", "/etc/sysctl.d/99-zzz.conf": "kernel.panic=0\n"}
    words = told(preflight(ubuntu(release, changed)), "sysctl")

    assert "/etc/sysctl.conf sets net.ipv4.ip_forward = 0" in words
    assert "/etc/sysctl.d/99-zzz.conf sets kernel.panic = 0" in words
    assert "99-sysctl.conf" not in words


@pytest.mark.parametrize("release", RELEASES)
def test_mounts_of_snaps_are_neither_ours_nor_full_disks(release: str) -> None:
    text = recorded(release)["files"][MOUNTINFO] + MICROK8S_MOUNT
    paths, points = config().paths, mount_points(text)

    assert len([point for point in points if point.startswith("/snap/")]) == 3
    for path in (paths.kubernetes.kubelet_dir, paths.containerd_dir, paths.install_dir, paths.data_dir):
        assert mounts_below(points, path) == []
        assert file_system_type(text, path) == "ext4"
    assert severities(preflight(ubuntu(release, {MOUNTINFO: text})), "disk") == ["ok"]


def process(pid: int, name: str, unit: str) -> dict[str, str | None]:
    return {f"/proc/{pid}/comm": f"{name}\n", f"/proc/{pid}/cgroup": f"0::/system.slice/{unit}\n"}


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize(
    ("snap", "processes"),
    [
        ("microk8s", {"daemon-kubelite": "kubelite", "daemon-containerd": "containerd"}),
        ("k8s", {"kubelet": "kubelet", "containerd": "containerd"}),
        ("kubelet", {"daemon": "kubelet"}),
        ("docker", {"dockerd": "dockerd"}),
    ],
)
def test_snap_of_another_runtime_is_one_finding(release: str, snap: str, processes: dict[str, str]) -> None:
    units = {f"snap.{snap}.{service}.service": name for service, name in processes.items()}
    files: dict[str, str | None] = {}
    for pid, (unit, name) in enumerate(units.items(), 700):
        files.update(process(pid, name, unit))
    running = findings(preflight(ubuntu(release, files, units=dict.fromkeys(units, "active"))), "other-runtime")
    stopped = findings(preflight(ubuntu(release, units=dict.fromkeys(units, "inactive"))), "other-runtime")

    assert [each.severity.value for each in (*running, *stopped)] == ["error", "warning"]
    assert f"Run `sudo snap stop --disable {snap}`" in running[0].remedy
    assert f"Run `sudo snap remove {snap}`" in stopped[0].remedy


@pytest.mark.parametrize("release", RELEASES)
def test_runtime_in_a_container_of_docker_is_still_found(release: str) -> None:
    words = told(preflight(ubuntu(release, process(900, "kubelet", "docker-0123.scope"))), "other-runtime")

    assert "kubelet runs on this machine (process 900, kubelet)" in words


def test_runc_profile_of_apparmor_4_does_not_match_our_runc() -> None:
    """Containers could not be stopped: their profile, in containerd before 1.7.17, accepts no signals of "runc"."""
    profile = recorded("24.04")["files"]["/etc/apparmor.d/runc"]
    [attached] = re.findall(r"^profile runc (\S+)", profile, re.MULTILINE)
    resources = runc.COMPONENT.desired(config(), read_machine(ubuntu("24.04"), config())).resources
    [program] = [each.target for each in resources if isinstance(each, Symlink)]
    [tree] = [each.path for each in resources if isinstance(each, ProgramTree)]

    assert program == f"{tree}/bin/runc"  # AppArmor matches the file, not the link to it
    assert attached != program


@pytest.mark.parametrize("release", RELEASES)
def test_node_replaces_no_file_of_an_ubuntu_machine(release: str) -> None:
    machine = read_machine(ubuntu(release), config())
    paths = {
        getattr(each, "path", "")
        for component in SEQUENCE
        for each in component.desired(config(), machine).resources
        if not isinstance(each, ProgramTree)
    }

    assert not paths & set(recorded(release)["files"])
    assert severities(preflight(ubuntu(release)), "leftovers") == ["ok"]
