"""Power cuts at random moments of an upgrade: the machine boots with the old or the new versions, and continues."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tests.agents import exists, web_pod
from tests.chaos.expected_state import NEWER, OLDER
from tests.chaos.invariants import HOME, settle
from tests.wait import until

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator

    from tests.chaos.attempts import Tried

LONGEST = 8.0  # approximate seconds that an upgrade takes
READY_SECONDS = 90.0
WANTED_SECONDS = 240.0


def cut_upgrades(it: Tried, chance: random.Random, count: int) -> None:
    with pod_on(it):
        for number in range(1, count + 1):
            cut_upgrade(it, chance, number)


@contextmanager
def pod_on(it: Tried) -> Iterator[None]:
    """Creates a pod that is not drained for an upgrade and must run after it."""
    cluster, name = it.managed.lab.cluster, f"web-{it.name}"
    pod = web_pod(name, it.name)
    labels = pod["metadata"]["labels"]
    template = {"metadata": {"labels": labels}, "spec": pod["spec"]}
    spec = {"selector": {"matchLabels": labels}, "template": template}
    about = {"name": name, "namespace": "default"}
    cluster.apply({"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": about, "spec": spec})
    try:
        until(lambda: _pod_runs(it), "its pod runs")
        yield
    finally:
        cluster.run("delete", "daemonset", name)


def _pod_runs(it: Tried) -> bool:
    found = it.managed.lab.cluster.get("daemonset", f"web-{it.name}")["status"]
    return bool(found.get("numberReady") == found["desiredNumberScheduled"] == 1)


def cut_upgrade(it: Tried, chance: random.Random, number: int) -> None:
    """Cuts the power during an upgrade or a downgrade, and waits until the node is ready."""
    up = it.wanted.versions != NEWER
    moment = chance.uniform(0, LONGEST)
    boot = it.managed.node()["status"]["nodeInfo"]["bootID"]
    it.want(downgrade=not up, versions=NEWER if up else OLDER)
    until(lambda: exists(it.machine, f"{HOME}/update-journal.json"), "the update begins")
    time.sleep(moment)
    begun = time.monotonic()
    it.machine.power_cycle()
    until(lambda: _works(it, boot), f"cut {number}, {moment:.1f} s into it: Ready with old or new", READY_SECONDS)
    ready = time.monotonic() - begun
    settle([it], WANTED_SECONDS)
    until(lambda: _pod_runs(it), f"cut {number}: its pod runs again")
    whole = time.monotonic() - begun
    print(f"cut {number} after {moment:.1f} s: Ready in {ready:.1f} s, as wanted in {whole:.1f} s", flush=True)


def _works(it: Tried, boot: str) -> bool:
    """Returns whether the node has booted since the cut, and runs versions that were requested."""
    node = it.managed.node()
    info = node["status"]["nodeInfo"]
    if info["bootID"] == boot or not it.managed.lab.cluster.node_ready(it.name):
        return False
    kubelet, runtime = info["kubeletVersion"].removeprefix("v"), info["containerRuntimeVersion"].rpartition("/")[2]
    assert kubelet in {OLDER["kubernetes"], NEWER["kubernetes"]}, info
    assert runtime in {OLDER["containerd"], NEWER["containerd"]}, info
    return True
