"""The faults of the recovery benchmark. Each returns the seconds from the fault, or from the end of its cause, until
the node has recovered."""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from aks_flex_node.timestamps import parse_timestamp
from tests.agents import flex
from tests.wait import boot_id, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.managed_node import ManagedLabNode

RECOVERY_SECONDS = 600.0
PKI = "/var/lib/kubelet/pki"
CLIENT = f"{PKI}/kubelet-client-current.pem"
RUNTIME = "/var/lib/containerd"
JOB = "aks-flex-node-job"
VERSIONS = ("1.35.4", "1.36.3")
# Faults that a script makes, during which the kubelet runs, or is stopped.
WITH_KUBELET = {
    "file drift": "echo mine >/etc/containerd/config.toml; rm /usr/local/bin/kubelet",
    "runtime killed": "systemctl kill --signal=KILL containerd",
}
WITHOUT_KUBELET = {
    "unit stopped": "systemctl stop kubelet containerd",
    "certificate lost": f"rm -r {PKI}; systemctl restart kubelet || true",
    "certificate damaged": f"truncate -s 0 $(readlink -f {CLIENT}); systemctl restart kubelet || true",
}
OTHERS = ("Node deleted", "runtime without CRI", "job killed", "power cut in an upgrade", "reboot", "power cut")
FAULTS = (*WITH_KUBELET, *WITHOUT_KUBELET, *OTHERS)


@dataclass
class FaultInjector:
    node: ManagedLabNode
    versions: Iterator[str] = field(default_factory=lambda: itertools.cycle(reversed(VERSIONS)))

    def faults(self) -> dict[str, Callable[[], float]]:
        found: dict[str, Callable[[], float]] = {}
        found |= {name: partial(self._script, text, kubelet=True) for name, text in WITH_KUBELET.items()}
        found |= {name: partial(self._script, text, kubelet=False) for name, text in WITHOUT_KUBELET.items()}
        machine = self.node.machine
        others = (
            self._node_deleted,
            self._full_disk,
            self._job_killed,
            self._power_cut_in_an_upgrade,
            partial(self._recovered, machine.reboot),
            partial(self._recovered, machine.power_cycle),
        )
        return {**found, **dict(zip(OTHERS, others, strict=True))}

    # --- Faults ---

    def _script(self, text: str, *, kubelet: bool) -> float:
        return self._recovered(lambda: self._run(text), kubelet=kubelet)

    def _node_deleted(self) -> float:
        before = self._uid()
        return self._recovered(
            lambda: self.node.lab.cluster.run("delete", "node", self.node.name, "--wait=false"),
            lambda: self._uid() not in {"", before},
        )

    def _full_disk(self) -> float:
        """Starts containerd on a full disk, so that it runs without its CRI plugin."""
        fill = f"chmod 700 {RUNTIME}; dd if=/dev/zero of={RUNTIME}/filler bs=1M status=none"
        self._run(f"systemctl stop kubelet containerd; mount -t tmpfs -o size=24m tmpfs {RUNTIME}; {fill} || true")
        self._run("systemctl start containerd kubelet || true")
        try:
            until(lambda: "full" in self._said("verify"), "the full disk is named", RECOVERY_SECONDS)
            return self._recovered(lambda: self._run(f"rm {RUNTIME}/filler"))
        finally:
            self._run(
                f"systemctl stop kubelet containerd; umount -R -l {RUNTIME}; systemctl start containerd kubelet"
            )

    def _job_killed(self) -> float:
        """Returns the seconds until the job runs again."""
        version = self._start_upgrade()
        until(lambda: self._job() != "0", "the job runs", RECOVERY_SECONDS)
        first = self._job()
        start = time.monotonic()
        self._run(f"kill -9 {first}")
        until(lambda: self._job() not in {"0", first}, "the job runs again", RECOVERY_SECONDS)
        seconds = time.monotonic() - start
        self.node.wait_until_applied(version)
        return seconds

    def _power_cut_in_an_upgrade(self) -> float:
        """Returns the seconds from the power cut until the node is Ready; then the upgrade is completed."""
        version = self._start_upgrade()
        until(lambda: bool(self._node()["spec"].get("unschedulable")), "the upgrade has started", RECOVERY_SECONDS)
        before, start = boot_id(self.node.lab, self.node.name), time.monotonic()
        self.node.machine.power_cycle()
        until(lambda: self.is_ready() and self._boot_id() != before, "the node is Ready", RECOVERY_SECONDS)
        seconds = time.monotonic() - start
        self.node.wait_until_applied(version)
        return seconds

    # --- The state of the node ---

    def settle(self) -> None:
        """Waits until the node is whole and no job runs."""
        until(lambda: self._is_whole() and self._is_connected(), "the node is whole", RECOVERY_SECONDS)

    def _recovered(
        self, fault: Callable[[], object], also: Callable[[], bool] = lambda: True, *, kubelet: bool = False
    ) -> float:
        """Injects a fault; returns the seconds until the node is whole. Without `kubelet`, the kubelet was
        interrupted, and must have renewed its lease since.
        """
        began, start = time.time(), time.monotonic()
        fault()
        until(
            lambda: also() and (kubelet or self.renewed() > began) and self._is_whole(),
            "the node is whole again",
            RECOVERY_SECONDS,
        )
        return time.monotonic() - start

    def _is_whole(self) -> bool:
        return self.is_ready() and flex(self.node.machine, "verify", check=False).ok

    def is_ready(self) -> bool:
        return self.node.lab.cluster.node_ready(self.node.name)

    def _is_connected(self) -> bool:
        return bool(self.node.status()["daemon"]["providerState"] == "Connected")

    def renewed(self) -> float:
        """Returns when the kubelet last renewed its lease."""
        lease: dict[str, Any] = (
            self.node.lab.cluster.get("lease", self.node.name, "--namespace=kube-node-lease") or {}
        )
        renewed = lease.get("spec", {}).get("renewTime")
        return parse_timestamp(renewed).timestamp() if renewed else 0.0

    def _node(self) -> dict[str, Any]:
        return self.node.node() or {"spec": {}, "metadata": {}}

    def _uid(self) -> str:
        return str(self._node()["metadata"].get("uid", ""))

    def _boot_id(self) -> str:
        return boot_id(self.node.lab, self.node.name)

    def _start_upgrade(self) -> str:
        return self.node.update(query="&allowDowngrade=true", versions={"kubernetes": next(self.versions)})

    def _job(self) -> str:
        return self.node.machine.run("systemctl", "show", "-P", "MainPID", JOB).out.strip()

    def _said(self, command: str) -> str:
        done = flex(self.node.machine, command, check=False)
        return done.out + done.err

    def _run(self, script: str) -> None:
        self.node.machine.run("sh", "-c", script)
