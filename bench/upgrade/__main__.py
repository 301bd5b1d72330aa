"""Upgrades managed nodes during requests to a pod on them; the last line is one JSON object.

A machine joins with older versions and is upgraded: only the kubelet, and kubelet with containerd and runc. The pod
is not drained (`updatePolicy.drain: false`), so that only the upgrade is measured. `gap` is the longest time between
two responses of the pod, which is requested twenty times per second from its machine; `not_ready` is the time in
which the node was not Ready; `applied` is the time from the PUT until the health check succeeded.
"""

from __future__ import annotations

import itertools
import threading
import time
from typing import TYPE_CHECKING, Any

from aks_flex_lab.baseline.join import web_pod
from bench.figures import print_result, print_round, spreads
from bench.lab import added_machine, running_lab
from bench.options import LAB, Option, parse
from tests.managed_node import ManagedLabNode
from tests.wait import answers, pod, until

if TYPE_CHECKING:
    from collections.abc import Callable

    from aks_flex_lab.lab import Lab

OLD = {"kubernetes": "1.35.4", "containerd": "1.7.29", "runc": "1.4.0"}
STEPS = {
    "kubelet": {**OLD, "kubernetes": "1.36.3"},
    "kubelet, containerd, runc": {"kubernetes": "1.36.3", "containerd": "2.4.2", "runc": "1.5.2"},
}
PROBE = "while :; do curl -s -m 2 -o /dev/null http://{}/ && date +%s.%N; sleep 0.05; done >/run/answers"


class Readiness(threading.Thread):
    """Measures how long a node is not Ready in the cluster."""

    def __init__(self, ready: Callable[[], bool]) -> None:
        super().__init__(daemon=True)
        self._ready, self._stopping, self.seconds = ready, threading.Event(), 0.0
        self._error: Exception | None = None

    def run(self) -> None:
        try:
            self._count()
        except Exception as error:  # raised by `stop`: a failed watch must not count as zero
            self._error = error

    def _count(self) -> None:
        before = time.monotonic()
        while not self._stopping.wait(0.1):
            now = time.monotonic()
            if not self._ready():
                self.seconds += now - before
            before = now

    def stop(self) -> float:
        self._stopping.set()
        self.join()
        if self._error:
            raise self._error
        return self.seconds


def upgraded(lab: Lab, name: str, versions: dict[str, str]) -> dict[str, float]:
    with added_machine(lab, name) as machine:
        node = ManagedLabNode.make(lab, machine, versions=OLD, nodeConfig={"updatePolicy": {"drain": False}})
        try:
            node.join()
            lab.cluster.apply(web_pod(name))
            until(lambda: answers(lab, machine), "the pod responds")
            machine.run("systemd-run", "--unit=probe", "sh", "-c", PROBE.format(pod(lab, name)["podIP"]))
            readiness = Readiness(lambda: lab.cluster.node_ready(name))
            readiness.start()
            began = time.time()
            version = node.update(versions=versions)
            node.wait_until_applied(version)
            applied = time.time() - began
            time.sleep(2)  # to include interruptions after the health check
            ended = time.time()
            moments = [float(line) for line in machine.run("cat", "/run/answers").out.split()]
            return {"applied": applied, "gap": longest(moments, began, ended), "not_ready": readiness.stop()}
        finally:
            machine.run("systemctl", "stop", "probe", check=False)
            node.delete()


def longest(moments: list[float], began: float, ended: float) -> float:
    """Returns the longest time without a response; without a later response, until the end."""
    during = [*(each for each in moments if began - 1 <= each < ended), ended]
    return max((after - before for before, after in itertools.pairwise(during)), default=ended - began)


def measured(lab: Lab, rounds: int) -> dict[str, Any]:
    found: dict[str, list[dict[str, float]]] = {step: [] for step in STEPS}
    for number in range(1, rounds + 1):
        for step_number, (step, versions) in enumerate(STEPS.items(), start=1):
            one = upgraded(lab, f"upgrade-{number}-{step_number}", versions)
            found[step].append(one)
            print_round(f"round {number}, {step}", one)
    return {step: spreads(some) for step, some in found.items()}


def main() -> None:
    options = parse("upgrade", __doc__, Option("--rounds", 3, "machines for each kind of upgrade"), LAB)
    with running_lab(options.lab) as lab:
        found = measured(lab, options.rounds)
    print_result("upgrade", rounds=options.rounds, seconds=found)


if __name__ == "__main__":
    main()
