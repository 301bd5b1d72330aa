"""The life of one managed node on a virtual machine, in phases. Each phase is measured, and checks what it caused."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.agents import differences, facts, flex, web_pod
from tests.releases import broken_kubelet
from tests.wait import boot_id, until_slow

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from aks_flex_lab.lab import Lab
    from aks_flex_lab.machines.machine import EdgeMachine
    from aks_flex_lab.snapshots import Snapshot
    from tests.managed_node import ManagedLabNode
    from tests.vm.conftest import Figures

SWAP_FILE = "/swapfile"
# It ends on SIGTERM. For a process that does not, systemd waits 90 s at every reboot.
SERVER = ["sh", "-c", "httpd -p 80 -h /www; trap exit TERM; while :; do sleep 60 & wait; done"]
OLDER, BROKEN, NEWER = "1.35.4", "1.35.99", "1.36.3"  # versions of Kubernetes


@dataclass
class NodeLifecycle:
    """The phases of a node. Each phase expects what the one before it leaves."""

    lab: Lab
    node: ManagedLabNode
    figures: Figures
    run: str  # the name of the run among the figures
    before: Snapshot

    @property
    def machine(self) -> EdgeMachine:
        return self.node.machine

    def phase(self, name: str) -> AbstractContextManager[None]:
        return self.figures.phase(self.run, name)

    def join(self) -> None:
        assert swaps(self.machine) == [SWAP_FILE]
        with self.phase("join by URL, until Ready"):
            self.node.join()
        with self.phase("verify"):
            assert facts(self.machine, "verify") == {"clean": True, "differences": []}
        assert swaps(self.machine) == []
        assert self.machine.run("stat", "-f", "-c", "%T", "/sys/fs/cgroup").out.strip() == "cgroup2fs"
        assert self.machine.run("test", "-d", "/sys/fs/cgroup/kubepods.slice").ok
        pod = f"web-{self.node.name}"
        with self.phase("pod runs"):
            self.lab.cluster.apply(web_pod(pod, self.node.name, command=SERVER))
            until_slow(lambda: self._pod_runs(pod), "a pod runs")

    def update(self) -> None:
        with self.phase("managed update"):
            self.node.wait_until_applied(self.node.update(nodeConfig={"maxPods": 42}))
            until_slow(lambda: self.node.max_pods() == 42, "the Node has the new setting")

    def repair_drift(self) -> None:
        damage = "echo '# was here' >>/etc/containerd/config.toml; rm /usr/local/bin/kubelet"
        with self.phase("drift: a changed file and a removed program, until repaired"):
            self.machine.run("sh", "-c", damage)
            until_slow(lambda: self._drift_count() >= 2, "the provider is told of the drift")
            until_slow(self.node.is_clean, "the drift is repaired")

    def upgrade(self) -> None:
        """Upgrades Kubernetes to a version that fails, which is rolled back, and to one that works."""
        before = self.node.applied()
        with (
            broken_kubelet(self.lab, BROKEN, self.machine.record.arch) as broken,
            self.phase("upgrade to a version that fails, until rolled back"),
        ):
            failed = self.node.update(versions={"kubernetes": broken})
            until_slow(lambda: self._status("UpgradeFailed") == "True", "the failure is reported")
        assert self.node.provider.get(self.node.name)["status"]["failedConfigVersion"] == failed
        assert self.node.applied() == before
        assert self._kubelet() == f"v{OLDER}"
        until_slow(lambda: self.lab.cluster.node_ready(self.node.name), "the node is Ready after the rollback")

        with self.phase("upgrade of Kubernetes"):
            self.node.wait_until_applied(self.node.update(versions={"kubernetes": NEWER}))
        assert self._kubelet() == f"v{NEWER}"
        assert not self.node.node()["spec"].get("unschedulable")

    def reboot(self) -> None:
        with self.phase("reboot, until Ready"):
            with self.phase("reboot, until multi-user"):
                self.machine.reboot()
            until_slow(self._booted_and_ready, "the node is Ready after a reboot")
        assert swaps(self.machine) == []

    def lose_power_in_update(self) -> None:
        version = self.node.update(nodeConfig={"maxPods": 43})
        until_slow(self._job_runs, "the update runs")
        with self.phase("power lost in an update, until the update is complete"):
            self.machine.power_cycle()
            self.node.wait_until_applied(version)
            until_slow(lambda: self.node.max_pods() == 43, "the update is complete after a power loss")
            until_slow(self.node.is_clean, "the node has its desired state")

    def unbootstrap(self) -> None:
        with self.phase("unbootstrap"):
            flex(self.machine, "unbootstrap", "--yes")
        self.figures.record(self.run, "load of the host (15 minutes)", f"{os.getloadavg()[2]:.1f}")
        assert swaps(self.machine) == [SWAP_FILE]
        self.machine.reboot()  # modules that the kernel loaded by itself stay until then
        assert swaps(self.machine) == [SWAP_FILE]
        assert not (left := differences(self.before, self.machine)), "\n".join(left)

    def _kubelet(self) -> str:
        return self.node.kubelet_version()

    def _status(self, condition: str) -> str:
        return self.node.condition(condition).get("status", "")

    def _drift_count(self) -> int:
        return int(self.node.provider.get(self.node.name)["status"].get("driftCount", 0))

    def _booted_and_ready(self) -> bool:
        """Returns whether the Node is Ready in this boot of the machine; at first, it still is in the last one."""
        now = self.machine.run("cat", "/proc/sys/kernel/random/boot_id").out.strip()
        return boot_id(self.lab, self.node.name) == now and self.lab.cluster.node_ready(self.node.name)

    def _pod_runs(self, name: str) -> bool:
        found = self.lab.cluster.get("pod", name)
        return bool(found) and found["status"].get("phase") == "Running"

    def _job_runs(self) -> bool:
        return self.machine.run("systemctl", "is-active", "aks-flex-node-job", check=False).ok


def swaps(machine: EdgeMachine) -> list[str]:
    return machine.run("swapon", "--show=NAME", "--noheadings").out.split()
