"""The demo that `make try` runs: a machine joins, is updated and upgraded, drifts, is repaired and unbootstrapped.
Three more machines join with one URL, and a bad version is rolled out to them.
"""

from __future__ import annotations

import json
import re
import secrets
import shlex
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from aks_flex_lab import node_agent, processes
from aks_flex_lab.baseline.join import web_pod
from aks_flex_lab.broken_release import broken_containerd
from aks_flex_lab.errors import LabError, UsageError
from aks_flex_lab.files import write_atomically
from aks_flex_lab.machines.base_system import DebianRelease
from aks_flex_lab.versions import NodeVersions

if TYPE_CHECKING:
    from collections.abc import Callable

    from aks_flex_lab.lab import Lab
    from aks_flex_lab.machines.machine import EdgeMachine
    from aks_flex_lab.progress import ProgressReporter
    from aks_flex_lab.snapshots import Snapshot

MACHINE = "demo-1"
ENROLLED = ("demo-2", "demo-3", "demo-4")  # machines that join with one URL
POOL = "demo"
ROLLOUT = "bad"
BAD_VERSION = "2.99.99"  # of containerd
# What the machine joins with, before it is upgraded to the default versions.
OLDER = NodeVersions(kubernetes="1.35.4", containerd="1.7.29", runc="1.4.0")
DEMO_TOOLS = (f"kubernetes@{OLDER.kubernetes}", f"containerd@{OLDER.containerd}", f"runc@{OLDER.runc}")
POD_SECONDS = 60
WAIT_SECONDS = 120
# Journal lines that the demo omits: systemd's messages about the unit, and summaries that repeat the progress lines.
SYSTEMD_MESSAGES = re.compile(r"(?:Start|Stopp|Deactivat|Finish)\w* |\S+\.service: |.*: \d+ changes?$")
DRIFT = "echo '# was here' >>/etc/containerd/config.toml; rm /usr/local/bin/kubelet; sysctl -qw net.ipv4.ip_forward=0"


@dataclass
class Demo:
    lab: Lab
    progress: ProgressReporter
    show: Callable[[str], None]  # prints the output of a command
    times: dict[str, float] = field(default_factory=dict)
    before: Snapshot | None = None
    since: float = 0.0  # start of the current step, as Unix time
    wait_seconds: float = WAIT_SECONDS

    def run(self, *, keep: bool = False) -> dict[str, float]:
        """Runs all steps and returns the seconds of each. Without `keep`, removes the lab, also after a failure."""
        machines = {machine.name for machine in self.lab.inventory.all()}
        if others := sorted(machines - {MACHINE, *ENROLLED}):
            raise UsageError(
                "lab-in-use",
                f"Lab {self.lab.layout.name} has machines ({', '.join(others)}), and the demo removes its lab.",
                f"Remove them with `{self.lab.command} down`, or run the demo in a separate lab.",
            )
        if machines:
            self.progress.message("The lab of an earlier demo, which was kept or interrupted, is removed first.")
            self.lab.down()
        try:
            self.phase("Start the cloud: a Kubernetes control plane, a registry, the provider", self.cloud)
            self.phase("Boot an edge machine and install the agent", self.boot)
            self.phase("Create a flex node resource and join the machine with one command", self.join)
            self.phase("Run a pod on the node and request its page", self.pod)
            self.phase("Change the node's labels; the daemon applies them", self.label)
            self.phase("Upgrade kubelet, containerd and runc", self.upgrade)
            self.phase("Damage the node by hand; the daemon repairs it", self.drift)
            self.phase("Enrol three more machines with one line, without an Azure identity", self.enrol)
            self.phase("Roll a bad version out to them: it stops after one machine, and comes back", self.roll_out)
            if not keep:
                self.phase("Delete the resource; the machine returns to its original state", self.leave)
        finally:
            if not keep:
                self.phase("Remove the lab", self.tear_down)
        return self.times

    def phase(self, title: str, act: Callable[[], None]) -> None:
        self.progress.message(f"\n{len(self.times) + 1}. {title}")
        start, self.since = time.monotonic(), time.time()
        act()
        self.times[title] = time.monotonic() - start

    @property
    def machine(self) -> EdgeMachine:
        return self.lab.inventory.find(MACHINE)

    def agent(self, *arguments: str) -> None:
        """Runs the agent in the machine and shows the command and its output."""
        self.line(f"aks-flex-node {shlex.join(arguments)}")

    def line(self, line: str) -> None:
        """Runs a command line of the agent in the machine, and shows it with its output."""
        self.progress.message(f"   {MACHINE}# {line}")
        if code := processes.run_attached(*self.machine.command_inside("sh", "-c", line, tty=sys.stderr.isatty())):
            raise LabError(
                "agent-failed",
                f"`{line}` failed in {MACHINE} with exit code {code}.",
                f"Run `make try KEEP=1`, then `aks-flex-lab --lab try machine shell {MACHINE}`.",
            )

    def provider(self, *arguments: str) -> str:
        """Runs `aks-flex-rp` as the administrator, shows the command and its output, and returns the output."""
        self.progress.message(f"   $ aks-flex-rp {' '.join(arguments)}")
        output = self.lab.provider.run_cli(*arguments).out.rstrip()
        self.show(output)
        return output

    def kubectl(self, *arguments: str) -> None:
        self.progress.message(f"   $ kubectl {' '.join(arguments)}")
        self.show(self.lab.cluster.run(*arguments).out.rstrip())

    def cloud(self) -> None:
        self.lab.up(self.progress)

    def boot(self) -> None:
        with self.lab.exclusive():
            machine = self.lab.inventory.add(MACHINE, DebianRelease.BOOKWORM, "factory", self.progress)
        self.show(machine.run("hostnamectl").out.rstrip())
        node_agent.install(machine)
        self.before = machine.snapshot()

    def enrol(self) -> None:
        """Boots three machines, and runs the same line on all at once."""
        with self.lab.exclusive():
            machines = [
                self.lab.inventory.add(name, DebianRelease.BOOKWORM, "factory", self.progress) for name in ENROLLED
            ]
        for machine in machines:
            node_agent.install(machine)
        self.provider("pool", "create", "--name", POOL, "--monitor")
        line = self.provider("pool", "enrolment", "create", "--pool", POOL, "--max-uses", str(len(machines)))
        for name in ENROLLED:
            self.progress.message(f"   {name}# {line}")
        with ThreadPoolExecutor(len(machines)) as threads:
            done = list(threads.map(lambda machine: machine.run("sh", "-c", line, timeout=600), machines))
        for each in done:
            self.show(each.err.rstrip().splitlines()[-2])
        self.provider("pool", "enrolment", "list", "--pool", POOL)
        self.kubectl("get", "nodes")

    def roll_out(self) -> None:
        """Rolls out a containerd that does not start."""
        with broken_containerd(self.lab, BAD_VERSION):
            self.provider("pool", "update", "--name", POOL, "--containerd-version", BAD_VERSION)
            waves = ("--wave", "1", "--wave", "100%", "--soak", "10s", "--no-wait")
            self.provider("rollout", "create", "--pool", POOL, "--name", ROLLOUT, *waves)
            self.wait_for("the roll-out is reversed", lambda: self.rollout().get("state") == "Reversed")
        self.provider("rollout", "show", "--pool", POOL, "--name", ROLLOUT)
        self.provider("rollout", "nodes", "--pool", POOL, "--name", ROLLOUT)
        self.provider("pool", "show", "--name", POOL)
        self.kubectl("get", "nodes", "-o", "wide")

    def rollout(self) -> dict[str, Any]:
        shown = self.lab.provider.run_cli("rollout", "show", "--pool", POOL, "--name", ROLLOUT, "--json").out
        found: dict[str, Any] = json.loads(shown)["properties"]
        return found

    def join(self) -> None:
        secret = self.lab.layout.home / "demo-secret"
        write_atomically(secret, secrets.token_urlsafe(24), 0o600)
        identity = self.lab.azure.directory.service_principal(MACHINE, secret.read_text())
        who = ("--auth-method", "servicePrincipal", "--client-id", identity.client_id)
        what = ("--name", MACHINE, "--monitor", *who, f"--client-secret-file={secret}", *version_options(OLDER))
        self.provider("node", "create", *what)
        self.line(self.provider("node", "join-command", "--name", MACHINE))
        self.kubectl("get", "nodes", "-o", "wide")

    def pod(self) -> None:
        self.lab.cluster.apply(deployment(MACHINE))
        self.wait_for_pod()

    def wait_for_pod(self) -> None:
        """Waits until the pod runs, and checks its page."""
        which = ("deployment", "web", f"--timeout={POD_SECONDS}s")
        self.lab.cluster.run("rollout", "status", *which, timeout=POD_SECONDS + 30)
        self.kubectl("get", "pods", "-o", "wide")
        [pod] = [
            one
            for one in self.lab.cluster.get("pods", "-l", "app=web")["items"]
            if (one["status"].get("phase") == "Running" and not one["metadata"].get("deletionTimestamp"))
        ]
        answer = self.machine.run("curl", "-sS", f"http://{pod['status']['podIP']}/").out.strip()
        self.show(answer)
        if "It works" not in answer:
            raise LabError(
                "pod-not-responding",
                f"The pod returned an unexpected page: {json.dumps(answer)}.",
                "Run `make try KEEP=1`.",
            )

    def label(self) -> None:
        self.provider("node", "update", "--name", MACHINE, "--label", "tier=gold", "--label", "site=factory")
        self.wait_for("the Node has the labels", lambda: self.node()["metadata"]["labels"].get("tier") == "gold")
        self.kubectl("get", "node", MACHINE, "-L", "tier,site")

    def upgrade(self) -> None:
        self.provider("node", "update", "--name", MACHINE, *version_options(NodeVersions()))
        self.wait_for("the node is upgraded, verified and uncordoned", self.is_upgraded)
        self.show_journal("aks-flex-node-job")
        self.kubectl("get", "nodes", "-o", "wide")
        self.wait_for_pod()
        self.provider("node", "list")

    def is_upgraded(self) -> bool:
        node = self.node()
        version = node["status"]["nodeInfo"]["kubeletVersion"]
        return bool(
            version == f"v{NodeVersions().kubernetes}"
            and not node["spec"].get("unschedulable")
            and not self.is_job_running()
        )

    def is_job_running(self) -> bool:
        return self.machine.run("systemctl", "is-active", "aks-flex-node-job", check=False).out.strip() == "active"

    def drift(self) -> None:
        self.progress.message(f"   {MACHINE}# {DRIFT}")
        self.machine.run("sh", "-c", DRIFT)
        clean = ("aks-flex-node", "verify")
        self.wait_for("the machine matches its configuration", lambda: self.machine.run(*clean, check=False).ok)
        self.show_journal("aks-flex-node")
        self.agent("status")

    def leave(self) -> None:
        self.provider("node", "delete", "--name", MACHINE, "--yes")
        gone = ("test", "-e", "/var/lib/aks-flex-node")
        left = lambda: not self.machine.run(*gone, check=False).ok and not self.is_job_running()  # noqa: E731
        self.wait_for("the agent confirmed the deletion and unbootstrapped the machine", left)
        self.lab.cluster.run("wait", "--for=delete", f"node/{MACHINE}", "--timeout=30s")
        self.progress.message("   the provider removed the node from the cluster")
        assert self.before  # noqa: S101 - an earlier phase took it
        changed = self.machine.differences(self.before)
        if changed:
            raise LabError(
                "machine-not-restored",
                f"{MACHINE} differs from its first snapshot: {'; '.join(map(str, changed))}.",
                "Report this as a defect of the agent, together with the message.",
            )
        self.progress.message("   the machine is identical to its first snapshot")

    def node(self) -> dict[str, Any]:
        found: dict[str, Any] = self.lab.cluster.get("node", MACHINE)
        return found

    def wait_for(self, what: str, true: Callable[[], bool]) -> None:
        """Waits for a change that happens automatically, and prints how long it took."""
        start = time.monotonic()
        while not true():
            if time.monotonic() - start > self.wait_seconds:
                raise LabError(
                    "demo-timeout",
                    f"Timed out after {self.wait_seconds:.0f} s. Expected: {what}.",
                    "Run `make try KEEP=1`, then `journalctl -u aks-flex-node` in the machine.",
                )
            time.sleep(0.1)
        self.progress.message(f"   {what} ({time.monotonic() - start:.1f} s)")

    def show_journal(self, unit: str) -> None:
        """Shows the journal of a unit since the start of the current step."""
        command = ("journalctl", "-u", unit, "--output=cat", "--no-pager", f"--since=@{self.since:.0f}")
        lines = [line for line in self.machine.run(*command).out.splitlines() if not SYSTEMD_MESSAGES.match(line)]
        self.progress.message(f"   {MACHINE}# journalctl -u {unit}")
        self.show("\n".join(lines))

    def tear_down(self) -> None:
        if left := self.lab.down():
            raise LabError(
                "lab-cleanup-incomplete",
                f"These resources of the lab still exist: {'; '.join(left)}.",
                "Run `aks-flex-lab down` again. Close the shells whose working directory is inside the lab.",
            )
        self.progress.message("   no process, mount, namespace, link or cgroup of the lab remains")


def version_options(versions: NodeVersions) -> tuple[str, ...]:
    parts = ("kubernetes", "containerd", "runc")
    return tuple(word for part in parts for word in (f"--{part}-version", str(getattr(versions, part))))


def deployment(machine: str) -> dict[str, Any]:
    """Returns a deployment that runs one web server pod on a machine."""
    spec = {**web_pod(machine)["spec"], "terminationGracePeriodSeconds": 1}
    template = {"metadata": {"labels": {"app": "web"}}, "spec": spec}
    deployment_spec = {"replicas": 1, "selector": {"matchLabels": {"app": "web"}}, "template": template}
    metadata = {"name": "web", "namespace": "default"}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": deployment_spec}
