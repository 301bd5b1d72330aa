"""A dozen fast tests of Kubernetes' conformance suite; `make conformance` runs all."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.conformance.suite import run_conformance

if TYPE_CHECKING:
    from pathlib import Path

    from aks_flex_lab.lab import Lab

FAST = (
    "Pods should get a host IP",
    "Downward API should provide pod UID as env vars",
    "Secrets should be consumable from pods in env vars",
    "ConfigMap should be consumable via environment variable",
    "Containers should be able to override the image's default command and arguments",
    "Variable Expansion should allow composing env vars into new env vars",
    "EmptyDir volumes should support (root,0644,tmpfs)",
    "Projected secret should be consumable from pods in volume with mappings",
    "Networking Granular Checks: Pods should function for intra-pod communication: http",
    "Services should serve a basic endpoint from pods",
    "AdmissionWebhook [Privileged:ClusterAdmin] should mutate configmap",
    "Security Context when creating containers with AllowPrivilegeEscalation should not allow privilege escalation",
)


@pytest.mark.usefixtures("nodes")
def test_fast_conformance_tests_pass_on_two_nodes(lab: Lab, tmp_path: Path) -> None:
    result = run_conformance(lab, tmp_path, 4, FAST)

    assert result.failed == (), (tmp_path / "log").read_text()[-20000:]
    assert [name for name in FAST if not any(name in test for test in result.passed)] == []
