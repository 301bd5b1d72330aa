"""Tests of drift: detected, described and repaired; changes outside of our resources are only reported."""

from __future__ import annotations

import datetime
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from aks_flex_node.agent.components import agent
from aks_flex_node.agent.components.catalog import ALL
from aks_flex_node.agent.drift.detection import MAX_DIFF_LINES, MAX_DIFF_WIDTH, detect_drift
from aks_flex_node.agent.drift.file_watcher import watch_paths
from aks_flex_node.agent.job_records.job_result import JobStatus
from aks_flex_node.agent.jobs.repair import repair_drift
from aks_flex_node.agent.self_update import compared_components
from aks_flex_node.errors import ArtifactError, MachineError
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
from aks_flex_node.host.host import CommandResult
from aks_flex_node.host.processes import TIMED_OUT
from tests.client_certificates import client_pem
from tests.unit.agent.builders import Ready, config_of, empty_host, ready_engine

if TYPE_CHECKING:
    from collections.abc import Callable

    from aks_flex_node.agent.reconcile.engine import Engine
    from aks_flex_node.agent.reconcile.resources import ProgramTree
    from aks_flex_node.host.actions import Action
    from aks_flex_node.settings.models import NodeConfig

TOML = "/etc/containerd/config.toml"
UNIT = "/etc/systemd/system/kubelet.service"
KUBELET = "/opt/aks-flex-node/kubernetes/1.34.4"
KUBECONFIG = "/var/lib/kubelet/bootstrap-kubeconfig"
FOLLOWS: dict[str, object] = {"continuousMonitoring": True}


def reconciled_host(config: NodeConfig | None = None) -> Engine:
    """Returns a machine with its desired state."""
    host = empty_host()
    engine = ready_engine(host, config or config_of(FOLLOWS))
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


def test_repair_continues_after_a_component_that_fails() -> None:
    engine = reconciled_host()
    for path in (TOML, UNIT):
        engine.host.apply(WriteFile(path, b"mine"))
    apply = engine.host.apply

    def refuses(action: Action) -> None:
        if action.subject == TOML:
            raise MachineError("file-access-failed", "Could not write it.", "Permit it.")
        apply(action)

    engine.host.apply = refuses  # type: ignore[method-assign]
    outcome = repair_drift(engine, compared_components)
    assert (outcome.result, outcome.message, outcome.hint) == (JobStatus.FAILED, "Could not write it.", "Permit it.")
    assert [one.subject for one in detect_drift(engine)] == [TOML]


PKI = "/var/lib/kubelet/pki"
SERVING = {f"{PKI}/kubelet.crt", f"{PKI}/kubelet.key"}
TRUNCATED = client_pem().encode()[:-200]


@pytest.mark.parametrize(
    ("path", "content", "aside", "said"),
    [
        (f"{PKI}/kubelet-client-current.pem", b"", {f"{PKI}/kubelet-client-current.pem"}, "is damaged: is empty"),
        (
            f"{PKI}/kubelet-client-current.pem",
            TRUNCATED,
            {f"{PKI}/kubelet-client-current.pem"},
            "is damaged: contains no readable private key",
        ),
        (f"{PKI}/kubelet-server-current.pem", b"\0" * 99, {f"{PKI}/kubelet-server-current.pem"}, "no readable"),
        (f"{PKI}/kubelet.crt", b"", SERVING, "is damaged: is empty"),
        (f"{PKI}/kubelet.key", b"", SERVING, f"{PKI}/kubelet.crt is damaged: {PKI}/kubelet.key is empty"),
        ("/var/lib/kubelet/kubeconfig", b"", {"/var/lib/kubelet/kubeconfig"}, "a required line is missing"),
    ],
    ids=["client", "client without key", "server", "serving certificate", "serving key", "kubeconfig"],
)
def test_unreadable_credential_is_set_aside_and_the_kubelet_restarted(
    path: str, content: bytes, aside: set[str], said: str
) -> None:
    engine = reconciled_host()
    for name in ("kubelet-client-current.pem", "kubelet-server-current.pem", "kubelet.crt", "kubelet.key"):
        engine.host.apply(WriteFile(f"{PKI}/{name}", client_pem().encode(), 0o600))
    engine.host.apply(WriteFile("/var/lib/kubelet/kubeconfig", b"server: https://cluster.example:443\n", 0o600))
    repair_drift(engine, compared_components)  # starts what needs the kubeconfig
    assert detect_drift(engine) == ()
    engine.applied_actions.clear()

    engine.host.apply(WriteFile(path, content, 0o600))
    found = detect_drift(engine)
    assert {one.subject for one in found} == aside
    assert any(said in one.description for one in found), found

    assert repair_drift(engine, compared_components).result is JobStatus.DONE
    assert [one for one in engine.applied_actions if one.started_unit] == [RestartUnit("kubelet.service")]
    assert all(engine.host.stat(each) is None for each in aside)
    assert engine.host.read(f"{path}.damaged") == content


def test_repair_restarts_only_the_service_whose_file_was_repaired() -> None:
    engine = reconciled_host()
    engine.host.apply(WriteFile(TOML, b"mine\n"))
    repair_drift(engine, compared_components)
    assert [one for one in engine.applied_actions if isinstance(one, RestartUnit)] == [
        RestartUnit("containerd.service", wait=False)
    ]


PLUGINS = ("/usr/local/bin/ctr", "plugins", "list")
SPACE = ("df", "--output=avail,itotal,iavail", "--block-size=1", "/var/lib/containerd")
HEADER = "Avail Inodes IFree\n"
WORKING = """\
TYPE                            ID         PLATFORMS      STATUS
io.containerd.snapshotter.v1    btrfs      linux/amd64    skip
io.containerd.cri.v1            runtime    linux/amd64    ok
io.containerd.grpc.v1           cri        -              ok
"""
WITHOUT_CRI = WORKING.replace("-              ok", "-              error")
OLDER_WITHOUT_CRI = "io.containerd.grpc.v1           cri        linux/amd64    error\n"


def answering(engine: Engine, answer: Callable[[tuple[str, ...]], CommandResult | None]) -> Engine:
    """Lets programs of the machine, whose services run for five minutes, give these answers."""
    known, unit = engine.host.query, engine.host.unit
    engine.host.query = lambda *argv, seconds=10.0: answer(argv) or known(*argv, seconds=seconds)  # type: ignore[method-assign]
    engine.host.unit = lambda name: replace(unit(name), started=time.monotonic() - 300)  # type: ignore[method-assign]
    return engine


@pytest.mark.parametrize("plugins", [WITHOUT_CRI, OLDER_WITHOUT_CRI])
@pytest.mark.parametrize(("space", "cause"), [("4096 9 9", "is full"), ("99999999999 9 0", "has no free inodes")])
def test_runtime_without_its_cri_is_restarted_once_there_is_space(plugins: str, space: str, cause: str) -> None:
    answers: dict[tuple[str, ...], CommandResult] = {PLUGINS: CommandResult(0, WORKING)}
    engine = answering(reconciled_host(), answers.get)
    assert detect_drift(engine) == ()
    answers |= {PLUGINS: CommandResult(0, plugins), SPACE: CommandResult(0, HEADER + space)}
    (found,) = detect_drift(engine)
    assert (found.component, found.subject, found.foreign) == ("containerd", "containerd.service", True)
    assert "does not serve the CRI" in found.description
    assert f"the disk of /var/lib/containerd {cause}" in found.description
    repair_drift(engine, compared_components)
    assert engine.applied_actions == [], "a restart does not help as long as the disk is full"
    answers[SPACE] = CommandResult(0, f"{HEADER}99999999999 0 0")  # some file systems do not count inodes
    assert not detect_drift(engine)[0].foreign
    assert detect_drift(engine)[0].fault
    apply = engine.host.apply

    def works_again(action: Action) -> None:
        apply(action)
        if action == RestartUnit("containerd.service", wait=False):
            answers[PLUGINS] = CommandResult(0, WORKING)

    engine.host.apply = works_again  # type: ignore[method-assign]
    assert repair_drift(engine, compared_components).result is JobStatus.DONE
    assert detect_drift(engine) == ()


@pytest.mark.parametrize(("seconds_ago", "count"), [(300.0, 1), (3.0, 0)])
def test_runtime_that_does_not_respond_is_drift_unless_it_just_started(seconds_ago: float, count: int) -> None:
    engine = answering(reconciled_host(), lambda argv: CommandResult(TIMED_OUT) if argv == PLUGINS else None)
    unit = engine.host.unit
    engine.host.unit = lambda name: replace(unit(name), started=time.monotonic() - seconds_ago)  # type: ignore[method-assign]
    found = [one.description for one in detect_drift(engine) if one.subject == "containerd.service"]
    assert found == ["containerd.service does not respond"] * count


VERSION = ("/usr/local/bin/ctr", "--version")


def test_runtime_of_an_overloaded_machine_is_not_restarted() -> None:
    slow = dict.fromkeys((PLUGINS, VERSION), CommandResult(TIMED_OUT))
    engine = answering(reconciled_host(), slow.get)
    (found,) = detect_drift(engine)
    assert (found.subject, found.foreign, found.blocked) == ("containerd.service", True, True)
    assert "containerd.service does not respond, because this machine is overloaded" in found.description
    repair_drift(engine, compared_components)
    assert engine.applied_actions == [], "the runtime may work"
    del slow[VERSION]
    assert detect_drift(engine)[0].fault, "only the runtime is slow"


def test_runtime_that_responds_to_the_second_request_is_no_drift() -> None:
    answers = [CommandResult(TIMED_OUT), CommandResult(0, WORKING)]
    engine = answering(reconciled_host(), lambda argv: answers.pop(0) if argv == PLUGINS else None)
    assert detect_drift(engine) == ()


@pytest.mark.parametrize(
    ("path", "content"), [(KUBECONFIG, b"token: stolen\n"), (KUBECONFIG, b"\xff\xfe"), (TOML, b"\xff\xfe")]
)
def test_drift_of_a_secret_or_binary_file_has_no_diff(path: str, content: bytes) -> None:
    engine = reconciled_host()
    engine.host.apply(WriteFile(path, content, 0o600 if path == KUBECONFIG else 0o644))
    (drift,) = detect_drift(engine)
    assert (drift.subject, drift.diff) == (path, "")


def test_certificate_and_key_that_do_not_match_are_both_set_aside() -> None:
    """A power cut between the writes of a new pair does this."""
    engine = reconciled_host()
    first, second = client_pem(), client_pem(datetime.datetime(2048, 1, 1, tzinfo=datetime.timezone.utc))
    key = second[second.index("-----BEGIN EC") :]
    engine.host.apply(WriteFile(f"{PKI}/kubelet.crt", first[: first.index("-----BEGIN EC")].encode()))
    engine.host.apply(WriteFile(f"{PKI}/kubelet.key", key.encode()))
    found = {one.subject: one.description for one in detect_drift(engine)}
    assert f"does not match {PKI}/kubelet.key" in found[f"{PKI}/kubelet.crt"]
    repair_drift(engine, compared_components)
    assert [engine.host.stat(f"{PKI}/kubelet.{end}") for end in ("crt", "key")] == [None, None]
    assert engine.host.read(f"{PKI}/kubelet.key.damaged") == key.encode()


def test_all_certificates_of_the_kubelet_are_watched() -> None:
    """The current one is a link to a file with a date in its name."""
    assert f"{PKI}/" in watch_paths(reconciled_host())


def test_repair_does_not_start_the_agent_that_a_person_stopped() -> None:
    engine = reconciled_host()
    name = "aks-flex-node.service"
    engine.host.apply(StopUnit(name))
    engine.host.apply(WriteFile(TOML, b"mine\n"))
    engine.kept_stopped = frozenset((name,))
    assert repair_drift(engine, lambda _: ALL).result is JobStatus.DONE
    assert engine.host.unit(name).active == "inactive"
    engine.kept_stopped = frozenset()
    repair_drift(engine, lambda _: ALL)
    assert engine.host.unit(name).active == "active"


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
