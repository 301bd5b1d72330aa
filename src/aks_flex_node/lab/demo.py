"""The main job, shown for real: what `make try` runs."""

from __future__ import annotations

import json
import shlex
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from aks_flex_node.lab import agents, processes, snapshots
from aks_flex_node.lab.errors import LabError, UsageError
from aks_flex_node.lab.floor.join import test_pod
from aks_flex_node.lab.machines.bases import System

if TYPE_CHECKING:
    from collections.abc import Callable

    from aks_flex_node.lab.lab import Lab
    from aks_flex_node.lab.machines.machine import Machine
    from aks_flex_node.lab.progress import Progress
    from aks_flex_node.lab.snapshots import Snapshot

MACHINE = "demo-1"
POD_SECONDS = 60
DRIFT = "echo '# was here' >>/etc/containerd/config.toml; rm /usr/local/bin/kubelet; sysctl -qw net.ipv4.ip_forward=0"


@dataclass
class Demo:
    lab: Lab
    progress: Progress
    show: Callable[[str], None]  # prints what a command answered
    times: dict[str, float] = field(default_factory=dict)
    before: Snapshot | None = None

    def run(self, *, keep: bool = False) -> dict[str, float]:
        """Tell the story; whatever happens, everything goes away again unless it is to be kept."""
        if others := [machine.name for machine in self.lab.inventory.all() if machine.name != MACHINE]:
            raise UsageError(
                "lab-in-use",
                f"Lab {self.lab.layout.name} has machines ({', '.join(others)}), and a demo takes its lab away.",
                "Show it in a lab of its own: `aks-flex-lab --lab try demo`.",
            )
        try:
            self.phase("The cloud comes up", self.cloud)
            self.phase("An edge machine boots, and gets the agent", self.boot)
            self.phase("A flex node is described, and one command makes the machine that node", self.join)
            self.phase("A pod on it answers", self.pod)
            self.phase("Its configuration changes", self.update)
            self.phase("Somebody breaks it by hand, and it is repaired", self.drift)
            if not keep:
                self.phase("It leaves, and is as it was", self.leave)
        finally:
            if not keep:
                self.phase("Everything goes away again", self.away)
        return self.times

    def phase(self, title: str, act: Callable[[], None]) -> None:
        self.progress.say(f"\n{len(self.times) + 1}. {title}")
        start = time.monotonic()
        act()
        self.times[title] = time.monotonic() - start

    @property
    def machine(self) -> Machine:
        return self.lab.inventory.find(MACHINE)

    def agent(self, *words: str) -> None:
        """Run the agent in the machine, before everybody's eyes."""
        line = f"aks-flex-node {' '.join(words)}"
        self.progress.say(f"   {MACHINE}# {line}")
        if code := processes.attach(*self.machine.inside("aks-flex-node", *words, tty=sys.stderr.isatty())):
            raise LabError(
                "agent-failed", f"`{line}` ended with exit code {code}.", "Run `make try KEEP=1`, and look around."
            )

    def provider(self, *words: str) -> str:
        """Run `aks-flex-rp` as an operator does."""
        self.progress.say(f"   $ aks-flex-rp {' '.join(words)}")
        said = self.lab.provider.ask(*words).out.rstrip()
        self.show(said)
        return said

    def kubectl(self, *words: str) -> None:
        self.progress.say(f"   $ kubectl {' '.join(words)}")
        self.show(self.lab.cluster.run(*words).out.rstrip())

    def cloud(self) -> None:
        self.lab.up(self.progress)

    def boot(self) -> None:
        with self.lab.alone():
            if before := next((one for one in self.lab.inventory.all() if one.name == MACHINE), None):
                self.progress.say(f"   {MACHINE} of an earlier try goes first")
                self.lab.inventory.remove(before)
                self.lab.provider.ask("node", "delete", "--name", MACHINE, "--yes")
                self.lab.cluster.run("delete", "node", MACHINE, "--ignore-not-found", "--wait=false")
                self.lab.cluster.run("delete", "pod", f"web-{MACHINE}", "--ignore-not-found", "--force")
            machine = self.lab.inventory.add(MACHINE, System.BOOKWORM, "factory", self.progress)
        self.show(machine.run("hostnamectl").out.rstrip())
        agents.install(machine)
        self.before = machine.snapshot()

    def join(self) -> None:
        self.provider("node", "create", "--name", MACHINE, "--label", "environment=demo")
        self.follow_url()
        self.kubectl("get", "nodes", "-o", "wide")
        self.provider("node", "list")

    def follow_url(self) -> None:
        """The one line that the provider prints, typed on the machine."""
        line = self.provider("node", "join-command", "--name", MACHINE)
        self.agent(*shlex.split(line)[1:])

    def pod(self) -> None:
        self.lab.cluster.apply(test_pod(MACHINE))
        name = f"pod/web-{MACHINE}"
        self.lab.cluster.run(
            "wait", "--for=condition=Ready", name, f"--timeout={POD_SECONDS}s", timeout=POD_SECONDS + 30
        )
        self.kubectl("get", "pods", "-o", "wide")
        pod = self.lab.cluster.get("pod", f"web-{MACHINE}")
        answer = self.machine.run("curl", "-sS", f"http://{pod['status']['podIP']}/").out.strip()
        self.show(answer)
        if "It works" not in answer:
            raise LabError(
                "pod-not-answering", f"The pod answered {json.dumps(answer)}.", "Run `make try KEEP=1`, look."
            )

    def update(self) -> None:
        self.provider("node", "update", "--name", MACHINE, "--max-pods", "50")
        self.follow_url()
        self.kubectl("get", "node", MACHINE, "-o", "custom-columns=NODE:.metadata.name,PODS:.status.capacity.pods")

    def drift(self) -> None:
        self.progress.say(f"   {MACHINE}# {DRIFT}")
        self.machine.run("sh", "-c", DRIFT)
        self.show(self.machine.run("aks-flex-node", "verify", check=False).out.rstrip())
        self.agent("bootstrap")
        self.agent("verify")

    def leave(self) -> None:
        self.agent("unbootstrap", "--yes")
        self.provider("node", "delete", "--name", MACHINE, "--yes")
        self.lab.cluster.run("wait", "--for=delete", f"node/{MACHINE}", "--timeout=30s")
        self.progress.say("   the provider has taken the node out of the cluster")
        assert self.before  # noqa: S101 - an earlier phase took it
        changed = [one for one in snapshots.diff(self.before, self.machine.snapshot()) if not one.shared]
        if changed:
            raise LabError("machine-changed", f"{MACHINE} is not as it was: {'; '.join(map(str, changed))}.")
        self.progress.say("   compared file by file with before: nothing differs")

    def away(self) -> None:
        if left := self.lab.down():
            raise LabError("lab-left-something", f"These stay: {'; '.join(left)}.")
        self.progress.say("   no process, mount, namespace, link or control group of it is left")
