"""Tests of the cleanup after pods, with recorded output: leftovers of pods and resources of other programs."""

from __future__ import annotations

import pytest

from aks_flex_node.agent.bootstrap import pod_cleanup
from aks_flex_node.agent.reconcile.resources import MANAGED_MARK
from aks_flex_node.host.actions import KillGroup, MakeDirectory, Remove, Run, StopUnit, Unmount
from aks_flex_node.host.host import CommandResult, UnitState
from tests.hosts.recorded import RecordedHost
from tests.unit.agent.bootstrap.test_network_cleanup import SAVED
from tests.unit.agent.builders import config_of

MOUNTS = "\n".join(
    f"{number} 1 0:1 / {path} rw - tmpfs tmpfs rw"
    for number, path in enumerate(
        (
            "/",
            "/var/lib/kubelet",
            "/var/lib/kubelet/pods/1/volumes/secret",
            "/var/lib/kubelet/pods/1/volumes/with\\040blank",
            "/run/containerd/io.containerd.runtime.v2.task/k8s.io/1/rootfs",
            "/var/lib/containerd/tmpmounts/1",
            "/run/netns/cni-fc1caa4f-9a78-8e86-3de3-91b8302a9f2f",
            "/var/lib/kubelet-other/x",
            "/var/lib/kubelet/pods",  # a disk of the host
            "/var/lib/kubelet/backup",  # below a bind mount of a directory of the host
            "/var/lib/containerd/backup",
        )
    )
)


def machine_with(*, foreign: tuple[str, ...] = (), ours: tuple[str, ...] = pod_cleanup.SERVICES) -> RecordedHost:
    units = {name: UnitState(name, exists=True, active="active") for name in (*ours, *foreign)}
    files = {f"/etc/systemd/system/{name}": f"# {MANAGED_MARK}" for name in ours}
    files.update(
        {
            "/proc/self/mountinfo": MOUNTS,
            "/run/netns/cni-fc1caa4f-9a78-8e86-3de3-91b8302a9f2f": "",
            "/run/netns/theirs": "",
        }
    )
    answers = {
        ("iptables-save",): CommandResult(0, SAVED),
        ("ip", "-j", "link", "show"): CommandResult(0, '[{"ifname":"docker0"},{"ifname":"flex0"},{}]'),
    }
    host = RecordedHost(files, answers, units)
    for path in pod_cleanup.GROUPS:
        host.apply(MakeDirectory(f"/sys/fs/cgroup/pids{path}"))
    return host


def test_pod_removal_covers_units_cgroups_mounts_netns_links_and_iptables() -> None:
    actions = pod_cleanup.pod_removal(machine_with(), config_of())
    assert actions[:3] == [StopUnit(name) for name in pod_cleanup.SERVICES]
    assert actions[3:6] == [KillGroup(path) for path in pod_cleanup.GROUPS]
    assert actions[6:10] == [
        Unmount("/var/lib/kubelet/pods/1/volumes/secret"),
        Unmount("/var/lib/kubelet/pods/1/volumes/with blank"),
        Unmount("/run/containerd/io.containerd.runtime.v2.task/k8s.io/1/rootfs"),
        Unmount("/var/lib/containerd/tmpmounts/1"),
    ]
    assert actions[10:12] == [
        Unmount("/run/netns/cni-fc1caa4f-9a78-8e86-3de3-91b8302a9f2f"),
        Remove("/run/netns/cni-fc1caa4f-9a78-8e86-3de3-91b8302a9f2f"),
    ]
    assert [action.argv[0] for action in actions[12:] if isinstance(action, Run)] == ["ip", "iptables-restore"]


def test_pod_removal_is_empty_on_a_machine_without_pods() -> None:
    assert pod_cleanup.pod_removal(RecordedHost(), config_of()) == []


@pytest.mark.parametrize(
    ("foreign", "ours", "kept"),
    [
        ("containerd.service", "kubelet.service", ("containerd", "netns", "iptables")),
        ("kubelet.service", "containerd.service", ("kubepods", "/var/lib/kubelet", "iptables")),
    ],
)
def test_pod_removal_keeps_what_belongs_to_a_foreign_service(foreign: str, ours: str, kept: tuple[str, ...]) -> None:
    host = machine_with(foreign=(foreign,), ours=(ours,))
    told = [str(action) for action in pod_cleanup.pod_removal(host, config_of())]
    assert f"stop {ours}" in told
    assert not [line for line in told if any(word in line for word in kept)]
