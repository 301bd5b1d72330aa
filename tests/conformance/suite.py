"""Runs Kubernetes' conformance tests on the nodes of a lab."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import time
from typing import TYPE_CHECKING

from aks_flex_lab.cluster_network import DAEMON_SETS, NAMESPACE, install_network
from aks_flex_lab.tools.catalog import go_tool
from tests.agents import flex, prepare
from tests.conformance.images import ETCD_TOOL, NAMES, SAMPLE_TOOL, TESTS, TestImages
from tests.conformance.result import ConformanceResult, excluded_tests, read_result
from tests.wait import until

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence
    from pathlib import Path

    from aks_flex_lab.lab import Lab
    from aks_flex_lab.machines.machine import EdgeMachine
    from aks_flex_lab.progress import ProgressReporter

E2E_TOOL = go_tool("kubernetes-e2e").selector
REPORT_SECONDS = 60.0
STOP_SECONDS = 15.0
FINISHED = "•"  # in ginkgo's log


def prepare_cluster(
    lab: Lab, machines: Iterable[EdgeMachine], progress: ProgressReporter, images: Collection[str] = tuple(NAMES)
) -> None:
    """Installs the cluster network and these images of tests, or all, in a lab, and joins the machines."""
    nodes = list(machines)
    install_network(lab, progress)
    push_images(lab, progress, images)
    for machine in nodes:
        with progress.step(f"join {machine.name}"):
            prepare(lab, machine)
            flex(machine, "agent")  # the daemon moves pods from the agent's bridge to the plugin's network
    until(lambda: runs_everywhere(lab, len(nodes)), "the cluster network runs on every node", seconds=180)
    until(lambda: not any(map(bridge, nodes)), "no pod is on the agent's bridge", seconds=180)
    until(lambda: runs_everywhere(lab, len(nodes)), "the cluster network runs on every node", seconds=180)


def push_images(lab: Lab, progress: ProgressReporter, images: Collection[str] = tuple(NAMES)) -> None:
    lab.toolbox.install((E2E_TOOL, *((ETCD_TOOL, SAMPLE_TOOL) if "etcd" in images else ())), progress)
    with progress.step("images of the conformance tests"):
        lab.services.push(TestImages(lab.toolbox).named(images))


def forget_images(machine: EdgeMachine) -> None:
    """Removes the images of tests from a node, which would not pull a changed one under the same name."""
    ctr = "ctr --namespace k8s.io images"
    machine.run("sh", "-c", f"{ctr} list --quiet | grep /{TESTS}/ | xargs --no-run-if-empty {ctr} remove")


def runs_everywhere(lab: Lab, nodes: int) -> bool:
    found = lab.cluster.get("daemonset", "--namespace", NAMESPACE, *DAEMON_SETS)["items"]
    return all(each["status"].get("numberReady", 0) >= nodes for each in found)


def bridge(machine: EdgeMachine) -> list[str]:
    """Returns the interface of the agent's bridge, and the addresses of pods on it."""
    links = json.loads(machine.run("ip", "-json", "link", "show", "type", "bridge").out or "[]")
    used = machine.run("sh", "-c", "ls /var/lib/cni/networks/aks-flex-node 2>/dev/null | grep '^[0-9]'", check=False)
    return [*(link["ifname"] for link in links if link.get("ifname") == "flex0"), *used.out.split()]


def run_conformance(
    lab: Lab,
    report: Path,
    processes: int,
    focus: Sequence[str] = (),
    on_progress: Callable[[str], None] = lambda _: None,
) -> ConformanceResult:
    """Runs the conformance tests whose names contain one of `focus`, or all; those that cannot run are skipped."""
    excluded = excluded_tests()
    report.mkdir(parents=True, exist_ok=True)
    (report / "junit.xml").unlink(missing_ok=True)
    argv = ginkgo_command(lab, report, processes, pattern(focus), pattern(each.test for each in excluded))
    run_ginkgo([str(word) for word in lab.network.cloud.command(*argv)], report / "log", on_progress)
    return read_result(report / "junit.xml", excluded)


def run_ginkgo(argv: Sequence[str], log: Path, on_progress: Callable[[str], None]) -> None:
    """Runs ginkgo, reports its progress every minute, and ends it with this program."""
    with log.open("wb") as out:
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            while process.poll() is None:
                try:
                    process.wait(REPORT_SECONDS)
                except subprocess.TimeoutExpired:
                    on_progress(progress_of(log.read_text(errors="replace")))
        finally:
            stop(process)


def stop(process: subprocess.Popen[bytes]) -> None:
    """Ends ginkgo and the processes of tests, which would go on without it."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_SECONDS)


def progress_of(log: str) -> str:
    """Returns the progress, with the time of day, from ginkgo's log."""
    failures = re.findall(r"(?m)^\S*• \[FAILED\].*\n(.*)", log)
    done = f"{time.strftime('%H:%M')} {log.count(FINISHED)} tests finished, {len(failures)} failed"
    return "\n".join([done, *(f"  {name}" for name in failures[-1:])])


def ginkgo_command(lab: Lab, report: Path, processes: int, focus: str, skip: str) -> list[str | Path]:
    """Returns the command, which runs in the cloud: tests connect to the addresses of nodes."""
    toolbox = lab.toolbox
    return [
        toolbox.path("kubernetes-e2e", "ginkgo"),
        f"--procs={processes}",
        "--label-filter=Conformance",
        *([f"--focus={focus}"] if focus else []),
        *([f"--skip={skip}"] if skip else []),
        "--no-color",
        "--timeout=6h",
        f"--output-dir={report}",
        "--junit-report=junit.xml",
        toolbox.path("kubernetes-e2e", "e2e.test"),
        "--",
        f"--kubeconfig={lab.provider.cluster_file}",
        f"--kubectl-path={toolbox.path('kubernetes', 'kubectl')}",
        "--provider=skeleton",
        "--disable-log-dump",
        f"--report-dir={report / 'e2e'}",
    ]


def pattern(parts: Iterable[str]) -> str:
    """Returns a regular expression of Go that finds any of these texts."""
    return "|".join(re.sub(r"([][(){}.*+?^$|\\])", r"\\\1", part) for part in parts)
