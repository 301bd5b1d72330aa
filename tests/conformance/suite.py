"""Runs Kubernetes' conformance tests on the nodes of a lab, and reads their results."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree as Xml

import yaml

from aks_flex_lab.cluster_network.installer import ClusterNetwork
from aks_flex_lab.cluster_network.manifests import DAEMON_SETS, NAMESPACE
from aks_flex_lab.processes import run_logged
from tests.agents import flex, prepare
from tests.conformance.images import TestImages
from tests.wait import until

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from aks_flex_lab.lab import Lab
    from aks_flex_lab.machines.machine import EdgeMachine
    from aks_flex_lab.progress import ProgressReporter

E2E_TOOL = "kubernetes-e2e@1.36.3"
CONFORMANCE = "[Conformance]"
NOT_RUNNABLE = Path(__file__).parent / "not_runnable.yaml"
FAILED = ("failed", "timedout", "panicked", "interrupted", "aborted")


@dataclass(frozen=True)
class ExcludedTest:
    """A conformance test that cannot run in the lab."""

    test: str  # a part of its name that no other test has
    reason: str


@dataclass(frozen=True)
class ConformanceResult:
    passed: tuple[str, ...]
    failed: tuple[str, ...]
    excluded: tuple[ExcludedTest, ...] = ()
    total: int = 0
    slowest: dict[str, float] = field(default_factory=dict)

    @property
    def runnable(self) -> int:
        return self.total - len(self.excluded)


def prepare_cluster(
    lab: Lab, machines: Iterable[EdgeMachine], progress: ProgressReporter, images: Iterable[str] = ()
) -> None:
    """Installs the cluster network and these images of tests, or all, in a lab, and joins the machines."""
    nodes = list(machines)
    ClusterNetwork(lab).install(progress)
    lab.toolbox.install((E2E_TOOL,), progress)
    with progress.step("images of the conformance tests"):
        lab.services.push(TestImages(lab.toolbox).named(images))
    for machine in nodes:
        with progress.step(f"join {machine.name}"):
            prepare(lab, machine)
            flex(
                machine, "agent"
            )  # with the daemon, which moves pods from the agent's bridge to the plugin's network
    until(lambda: runs_everywhere(lab, len(nodes)), "the cluster network runs on every node", seconds=180)
    until(lambda: not any(map(bridge, nodes)), "no pod is on the agent's bridge", seconds=180)
    until(lambda: runs_everywhere(lab, len(nodes)), "the cluster network runs on every node", seconds=180)


def runs_everywhere(lab: Lab, nodes: int) -> bool:
    found = lab.cluster.get("daemonset", "--namespace", NAMESPACE, *DAEMON_SETS)["items"]
    return all(each["status"].get("numberReady", 0) >= nodes for each in found)


def bridge(machine: EdgeMachine) -> list[str]:
    """Returns the interface of the agent's bridge, and the addresses of pods on it."""
    links = json.loads(machine.run("ip", "-json", "link", "show", "type", "bridge").out or "[]")
    used = machine.run("sh", "-c", "ls /var/lib/cni/networks/aks-flex-node 2>/dev/null | grep '^[0-9]'", check=False)
    return [*(link["ifname"] for link in links if link.get("ifname") == "flex0"), *used.out.split()]


def excluded_tests(file: Path = NOT_RUNNABLE) -> tuple[ExcludedTest, ...]:
    return tuple(ExcludedTest(**each) for each in yaml.safe_load(file.read_text()) or ())


def run_conformance(lab: Lab, report: Path, processes: int, focus: Sequence[str] = ()) -> ConformanceResult:
    """Runs the conformance tests whose names contain one of `focus`, or all; those that cannot run are skipped."""
    excluded = excluded_tests()
    report.mkdir(parents=True, exist_ok=True)
    argv = ginkgo_command(lab, report, processes, pattern(focus), pattern(each.test for each in excluded))
    run_logged(*lab.network.cloud.command(*argv), log=report / "log")
    return read_result(report / "junit.xml", excluded)


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


def read_result(report: Path, excluded: Sequence[ExcludedTest] = ()) -> ConformanceResult:
    """Reads ginkgo's report, which lists also the tests that did not run."""
    cases = [
        case
        for case in Xml.parse(report).getroot().iter("testcase")  # noqa: S314 - ginkgo wrote it just now
        if CONFORMANCE in case.get("name", "")
    ]
    named = {status: tuple(c.get("name", "") for c in cases if c.get("status") == status) for status in STATUSES}
    for each in excluded:  # an entry that means no test, or several, is wrong
        assert sum(each.test in case.get("name", "") for case in cases) == 1, each.test
    seconds = {case.get("name", ""): float(case.get("time", 0)) for case in cases}
    return ConformanceResult(
        named["passed"],
        tuple(name for status in FAILED for name in named[status]),
        tuple(excluded),
        len(cases),
        dict(Counter(seconds).most_common(12)),
    )


STATUSES = ("passed", "skipped", "pending", *FAILED)
