"""The main job, shown for real: what `make try` runs."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from aks_flex_node.lab.errors import LabError, UsageError
from aks_flex_node.lab.floor.join import Versions, join
from aks_flex_node.lab.machines.bases import System

if TYPE_CHECKING:
    from collections.abc import Callable

    from aks_flex_node.lab.lab import Lab
    from aks_flex_node.lab.progress import Progress

MACHINE = "demo-1"


@dataclass
class Demo:
    lab: Lab
    progress: Progress
    show: Callable[[str], None]  # prints what a command answered
    times: dict[str, float] = field(default_factory=dict)

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
            self.phase("An edge machine boots", self.machine)
            self.phase("It becomes a node", self.node)
            self.phase("A pod on it answers", self.pod)
        finally:
            if not keep:
                self.phase("Everything goes away again", self.away)
        return self.times

    def phase(self, title: str, act: Callable[[], None]) -> None:
        self.progress.say(f"\n{len(self.times) + 1}. {title}")
        start = time.monotonic()
        act()
        self.times[title] = time.monotonic() - start

    def cloud(self) -> None:
        self.lab.up(self.progress)

    def machine(self) -> None:
        with self.lab.alone():
            if before := next((one for one in self.lab.inventory.all() if one.name == MACHINE), None):
                self.progress.say(f"   {MACHINE} of an earlier try goes first")
                self.lab.inventory.remove(before)
                self.lab.cluster.run("delete", "node", MACHINE, "--ignore-not-found", "--wait=false")
                self.lab.cluster.run("delete", "pod", f"web-{MACHINE}", "--ignore-not-found", "--force")
            machine = self.lab.inventory.add(MACHINE, System.BOOKWORM, "factory", self.progress)
        self.show(machine.run("hostnamectl").out.rstrip())

    def node(self) -> None:
        versions = Versions()
        self.progress.say(
            f"   by hand, at the physical limit: kubelet {versions.kubernetes}, containerd {versions.containerd}"
        )
        joined = join(self.lab, self.lab.inventory.find(MACHINE))
        for name, seconds in joined.phases.items():
            self.progress.say(f"   {name:<12}{seconds:6.2f} s")
        self.show(self.lab.cluster.run("get", "nodes", "-o", "wide").out.rstrip())

    def pod(self) -> None:
        self.show(self.lab.cluster.run("get", "pods", "-o", "wide").out.rstrip())
        pod = self.lab.cluster.get("pod", f"web-{MACHINE}")
        answer = self.lab.inventory.find(MACHINE).run("curl", "-sS", f"http://{pod['status']['podIP']}/").out.strip()
        self.show(answer)
        if "It works" not in answer:
            raise LabError(
                "pod-not-answering", f"The pod answered {json.dumps(answer)}.", "Run `make try KEEP=1`, look."
            )

    def away(self) -> None:
        if left := self.lab.down():
            raise LabError("lab-left-something", f"These stay: {'; '.join(left)}.")
        self.progress.say("   no process, mount, namespace, link or control group of it is left")
