"""Tests of drift: detected, described and repaired; changes outside of our resources are only reported."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from aks_flex_node.agent.components import agent
from aks_flex_node.agent.components.catalog import ALL
from aks_flex_node.agent.drift.detection import MAX_DIFF_LINES, MAX_DIFF_WIDTH, detect_drift, parse_units
from aks_flex_node.agent.drift.file_watcher import watch_paths
from aks_flex_node.agent.job_records.job_result import JobStatus
from aks_flex_node.agent.jobs.repair import repair_drift
from aks_flex_node.agent.self_update import compared_components
from aks_flex_node.errors import ArtifactError
from aks_flex_node.host.actions import (
    DisableUnit,
    MakeDirectory,
    MakeLink,
    Remove,
    RestartUnit,
    SetSysctl,
    StopUnit,
    WriteFile,
)
from tests.unit.agent.builders import Ready, config_of, empty_host, engine_on

if TYPE_CHECKING:
    from aks_flex_node.agent.config.models import NodeConfig
    from aks_flex_node.agent.reconcile.engine import Engine
    from aks_flex_node.agent.reconcile.resources import ProgramTree
    from aks_flex_node.host.actions import Action

TOML = "/etc/containerd/config.toml"
UNIT = "/etc/systemd/system/kubelet.service"
KUBELET = "/opt/aks-flex-node/kubernetes/1.34.4"
KUBECONFIG = "/var/lib/kubelet/bootstrap-kubeconfig"
FOLLOWS: dict[str, object] = {"continuousMonitoring": True}


def reconciled_host(config: NodeConfig | None = None) -> Engine:
    """Returns a machine with its desired state."""
    host = empty_host()
    engine = engine_on(host, config or config_of(FOLLOWS))
    engine.stager = Ready(host)
    for component in (agent.COMPONENT, *ALL):
        engine.apply(component)
    engine.sync_to_disk()
    engine.applied_actions.clear()
    return engine


def file_at(engine: Engine, path: str) -> bytes:
    return engine.host.read(path) or b""


def test_unchanged_machine_has_no_drift_and_repair_does_nothing() -> None:
    engine = reconciled_host()
    assert detect_drift(engine) == ()
    outcome = repair_drift(engine, compared_components)
    assert (outcome.result, outcome.reason, outcome.message) == (JobStatus.DONE, "", "")
    assert engine.applied_actions == []


@pytest.mark.parametrize(
    ("action", "component", "said"),
    [
        (WriteFile(TOML, b"mine\n"), "containerd", f"{TOML} has different content"),
        (Remove(UNIT), "kubelet", f"{UNIT} is missing"),
        (MakeLink(UNIT, "/dev/null"), "kubelet", f"{UNIT} is masked"),
        (MakeLink(TOML, "/srv/mine"), "containerd", f"{TOML} is a link to /srv/mine"),
        (
            MakeDirectory("/var/lib/containerd", 0o777),
            "containerd",
            "/var/lib/containerd has mode 0777 instead of 0700",
        ),
        (
            MakeLink("/usr/local/bin/kubelet", "/srv/kubelet"),
            "kubernetes",
            f"/usr/local/bin/kubelet does not point to {KUBELET}/bin/kubelet",
        ),
        (Remove("/usr/local/bin/kubelet"), "kubernetes", "/usr/local/bin/kubelet is missing"),
        (
            WriteFile(f"{KUBELET}/bin/kubelet", b"PROGRAM", 0o755),
            "kubernetes",
            f"{KUBELET} is damaged: bin/kubelet has different content",
        ),
        (StopUnit("containerd.service"), "containerd", "containerd.service is inactive"),
        (DisableUnit("kubelet.service"), "kubelet", "kubelet.service is disabled"),
        (SetSysctl("net.ipv4.ip_forward", "0"), "system", "net.ipv4.ip_forward is 0 instead of 1"),
        (StopUnit("aks-flex-node.service"), "service", "aks-flex-node.service is inactive"),
    ],
    ids=str,
)
def test_foreign_change_is_described_as_drift_and_repaired(action: Action, component: str, said: str) -> None:
    engine = reconciled_host()
    engine.host.apply(action)

    (drift,) = detect_drift(engine)
    assert (drift.component, drift.description) == (component, said)
    outcome = repair_drift(engine, compared_components)
    assert (outcome.result, outcome.reason, outcome.message) == (JobStatus.DONE, "Repaired", f"Repaired: {said}.")
    assert detect_drift(engine) == ()


def test_repair_restarts_only_the_service_whose_file_was_repaired() -> None:
    engine = reconciled_host()
    engine.host.apply(WriteFile(TOML, b"mine\n"))
    repair_drift(engine, compared_components)
    assert [one for one in engine.applied_actions if isinstance(one, RestartUnit)] == [
        RestartUnit("containerd.service", wait=False)
    ]


def test_drift_contains_a_diff_of_the_file() -> None:
    engine = reconciled_host()
    engine.host.apply(WriteFile(TOML, file_at(engine, TOML) + b"mine = true\n"))
    (drift,) = detect_drift(engine)
    assert drift.diff.splitlines()[-1] == "+mine = true"
    assert drift.diff.startswith("--- desired\n+++ observed\n")


def test_diff_of_a_large_file_is_truncated() -> None:
    engine = reconciled_host()
    engine.host.apply(WriteFile(TOML, b"mine = true\n" * 500 + b"x" * 1000))
    (drift,) = detect_drift(engine)
    lines = drift.diff.splitlines()
    assert (len(lines), lines[-1]) == (MAX_DIFF_LINES + 1, "…")
    repair_drift(engine, compared_components)
    engine.host.apply(WriteFile(TOML, file_at(engine, TOML) + b"x" * 1000))
    (drift,) = detect_drift(engine)
    assert max(map(len, drift.diff.splitlines())) == MAX_DIFF_WIDTH


@pytest.mark.parametrize("content", [b"token: stolen\n", b"\xff\xfe"])
def test_drift_of_a_secret_file_has_no_diff(content: bytes) -> None:
    engine = reconciled_host()
    engine.host.apply(WriteFile(KUBECONFIG, content, 0o600))
    (drift,) = detect_drift(engine)
    assert (drift.subject, drift.diff) == (KUBECONFIG, "")


def test_drift_of_a_binary_file_has_no_diff() -> None:
    engine = reconciled_host()
    engine.host.apply(WriteFile(TOML, b"\xff\xfe"))
    (drift,) = detect_drift(engine)
    assert drift.diff == ""


@pytest.mark.parametrize("place", ["/etc/systemd/system", "/run/systemd/system", "/etc/systemd/system.control"])
def test_foreign_drop_in_is_reported_as_drift_and_kept(place: str) -> None:
    engine = reconciled_host()
    path = f"{place}/kubelet.service.d/50-mine.conf"
    engine.host.apply(MakeDirectory(f"{place}/kubelet.service.d"))
    engine.host.apply(WriteFile(path, b"[Service]\nCPUQuota=10%\n"))

    (drift,) = detect_drift(engine)
    assert (drift.description, drift.foreign) == (
        f"{path} changes kubelet.service and is not managed by aks-flex-node",
        True,
    )
    assert repair_drift(engine, compared_components).result == JobStatus.DONE
    assert engine.host.stat(path) is not None


def test_ignored_path_is_neither_drift_nor_repaired() -> None:
    engine = reconciled_host()
    engine.host.apply(WriteFile(TOML, b"mine\n"))
    engine = replace(engine, ignored_paths=frozenset({TOML}))
    assert detect_drift(engine) == ()
    repair_drift(engine, compared_components)
    assert file_at(engine, TOML) == b"mine\n"


def test_repair_reports_why_a_missing_program_cannot_be_downloaded() -> None:
    engine = reconciled_host()

    class Away(Ready):
        def finish(self, program: ProgramTree, seconds: float) -> None:  # noqa: ARG002
            raise ArtifactError("download-failed", "The mirror is away.", "Wait.", retryable=True)

    engine.stager = Away(empty_host())
    engine.host.apply(Remove(f"{KUBELET}/bin/kubelet"))
    outcome = repair_drift(engine, compared_components)
    assert (outcome.result, outcome.reason, outcome.message, outcome.retryable) == (
        JobStatus.FAILED,
        "download-failed",
        "The mirror is away.",
        True,
    )


def test_repair_completes_when_the_agent_version_cannot_be_downloaded() -> None:
    class WithoutAgent(Ready):
        def finish(self, program: ProgramTree, seconds: float) -> None:
            if program.component == "agent":
                raise ArtifactError("download-failed", "There is no such agent.", retryable=True)
            super().finish(program, seconds)

    engine = reconciled_host()
    engine.config = config_of({**FOLLOWS, "agent.version": "9.9.9"})
    engine.stager = WithoutAgent(engine.host)  # type: ignore[arg-type]
    engine.host.apply(WriteFile(TOML, b"mine\n"))
    assert repair_drift(engine, compared_components).reason == "Repaired"
    assert file_at(engine, TOML) != b"mine\n"


def test_watch_paths_cover_desired_files_and_exclude_the_state_directory() -> None:
    found = watch_paths(reconciled_host())
    assert {
        TOML,
        UNIT,
        "/usr/local/bin/kubelet",
        f"{KUBELET}/bin/kubelet",
        f"{KUBELET}/bin",
        "/etc/systemd/system/aks-flex-node.service",
        "/etc/systemd/system/multi-user.target.wants/kubelet.service",
        "/etc/systemd/system/kubelet.service.d/",
    } <= found
    assert not [path for path in found if path.startswith("/var/lib/aks-flex-node")], "which it writes to itself"


def test_agent_components_are_applied_last() -> None:
    assert [component.name for component in ALL[-3:]] == ["tools", "release", "service"]


def test_systemctl_output_of_several_units_is_parsed() -> None:
    text = "Id=a.service\nLoadState=loaded\nActiveState=active\n\nId=b.service\nLoadState=not-found\n"
    found = parse_units(text)
    assert {name: (unit.exists, unit.running) for name, unit in found.items()} == {
        "a.service": (True, True),
        "b.service": (False, False),
    }
