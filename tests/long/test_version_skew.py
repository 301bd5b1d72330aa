"""Kubelets of earlier minor versions on the lab's control plane, down to the oldest that Kubernetes allows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from aks_flex_lab.lab import Lab
from aks_flex_lab.layout import lab_layout
from aks_flex_lab.machines.base_system import DebianRelease
from aks_flex_lab.versions import NodeVersions
from tests.agents import differences, facts, flex, prepare
from tests.harness import LAB, Lines
from tests.version_mixes import runs_pods

if TYPE_CHECKING:
    from collections.abc import Iterator

EARLIER = ("1.34.4", "1.33.13")  # the control plane is 1.36: three minor versions are allowed


@pytest.fixture(scope="module")
def skew_lab() -> Iterator[Lab]:
    """A lab of its own, which also installs the programs of earlier versions."""
    lab = Lab(lab_layout(f"{LAB}-b"), tools=tuple(f"kubernetes@{version}" for version in EARLIER))
    lab.down()
    try:
        lab.up(Lines())
        yield lab
    finally:
        left = lab.down()
    assert left == []


@pytest.mark.parametrize("kubernetes", EARLIER)
def test_earlier_kubelet_joins_runs_pods_and_leaves(skew_lab: Lab, kubernetes: str) -> None:
    name = f"skew-{kubernetes.replace('.', '-')}"
    with skew_lab.exclusive():
        machine = skew_lab.inventory.add(name, DebianRelease.BOOKWORM, "site-1")
    prepare(skew_lab, machine, versions=NodeVersions(kubernetes=kubernetes))
    before = machine.snapshot()

    flex(machine, "agent", "--config", "/etc/aks-flex-node/config.json")

    assert skew_lab.cluster.get("node", name)["status"]["nodeInfo"]["kubeletVersion"] == f"v{kubernetes}"
    assert facts(machine, "verify") == {"clean": True, "differences": []}
    runs_pods(skew_lab, machine)
    flex(machine, "unbootstrap", "--yes")
    assert differences(before, machine) == []
