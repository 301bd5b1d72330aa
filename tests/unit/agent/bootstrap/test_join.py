"""Tests of join and unbootstrap on a recorded host."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from aks_flex_node.agent import paths
from aks_flex_node.agent.bootstrap import phases, pod_cleanup
from aks_flex_node.agent.bootstrap.join import NodeJoin, PrerequisiteStage
from aks_flex_node.agent.bootstrap.unbootstrap import AGENT_FILES, Unbootstrap
from aks_flex_node.agent.cluster.nodes import ClusterNode
from aks_flex_node.agent.cluster.readiness import NodeReadiness
from aks_flex_node.agent.components.catalog import AGENT_COMPONENTS, SEQUENCE
from aks_flex_node.agent.job_records.job_result import STAGE_UNIT
from aks_flex_node.agent.progress import ProgressReporter
from aks_flex_node.agent.reconcile import node_state
from aks_flex_node.agent.reconcile.node_state import Phase
from aks_flex_node.errors import ClusterError, FlexError, MachineError
from aks_flex_node.host.actions import (
    EditFile,
    MakeDirectory,
    MakeLink,
    Remove,
    RemoveTree,
    RestartUnit,
    StartUnit,
    StopUnit,
    WriteFile,
)
from aks_flex_node.host.host import CommandResult, UnitState
from tests.hosts.recorded import RecordedHost
from tests.unit.agent.builders import (
    DATA,
    MACHINE,
    SYSTEM_FOLDERS,
    config_of,
    empty_host,
    engine_on,
    pending_actions,
    ready_engine,
)
from tests.unit.agent.components.test_every_component import CUSTOM

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from aks_flex_node.agent.reconcile.engine import Engine
    from aks_flex_node.host.host import FileEntry
    from aks_flex_node.settings.models import NodeConfig
    from tests.unit.agent.config.builders import Settings


NODE = ClusterNode.read(
    {
        "metadata": {"name": "edge-1"},
        "spec": {"podCIDR": "10.244.3.0/24"},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    }
)
STATE = f"{DATA}/state.json"


class Proven(NodeReadiness):
    """A cluster that registers the node, and assigns its pod CIDR a moment later."""

    def __init__(self, host: RecordedHost, config: NodeConfig) -> None:
        self.host = host
        self.kubeconfig = f"{config.paths.kubernetes.kubelet_dir}/kubeconfig"

    def needs_kubelet_restart(self) -> bool:
        return False

    def sync_labels(self, node: ClusterNode, wanted: Mapping[str, str], earlier: frozenset[str]) -> None:
        pass

    def wait_registered(self, lost_seconds: float = 0.0) -> ClusterNode:  # noqa: ARG002
        self.host.apply(WriteFile(self.kubeconfig, b"server: https://cluster.example:443\n", 0o600))
        return replace(NODE, pod_cidr="", ready=False)

    def wait_ready(self, seen: Callable[[ClusterNode], None]) -> ClusterNode:
        seen(NODE)
        seen(NODE)
        return NODE


class Refusing(Proven):
    def wait_registered(self, lost_seconds: float = 0.0) -> ClusterNode:  # noqa: ARG002
        raise ClusterError("bootstrap-token-rejected", "The token is not accepted.", "Get another.")


class RefusingOnce(Proven):
    """A cluster that refuses the used bootstrap token, and accepts the next one."""

    refused = False

    def wait_registered(self, lost_seconds: float = 0.0) -> ClusterNode:  # noqa: ARG002
        if self.refused:
            return super().wait_registered()
        self.refused = True
        raise ClusterError("bootstrap-token-rejected", "The token is not accepted.", "Get another.")


class RecordingProgress(ProgressReporter):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def step_finished(self, name: str, changes: int | None, seconds: float) -> None:
        assert changes is not None
        assert changes >= 0
        assert seconds >= 0
        self.lines.append(f"{name} done")

    def step_failed(self, name: str, error: FlexError) -> None:
        self.lines.append(f"{name} failed: {error.name}")


def join(host: RecordedHost, config: NodeConfig | None = None, announce: Callable[[], None] | None = None) -> Engine:
    known = node_state.read(host, STATE)  # as the command does
    engine = ready_engine(host, config, replace(MACHINE, pod_cidr=known.pod_cidr))
    NodeJoin(engine, Proven(host, engine.config), announce=announce).run()
    return engine


class CountingHost(RecordedHost):
    """A machine without files, which counts the programs that are started on it."""

    def __init__(self) -> None:
        self.programs: Counter[str] = Counter()
        super().__init__()

    def query(self, *argv: str, seconds: float = 10.0) -> CommandResult:
        self.programs[argv[0]] += 1
        return super().query(*argv, seconds=seconds)

    def unit(self, name: str) -> UnitState:
        self.programs["systemctl show"] += 1
        return super().unit(name)


def test_first_join_starts_few_programs_and_writes_the_ledger_seldom() -> None:
    """What a join costs on any machine: each of these was a large part of its time once."""
    host = CountingHost()
    for folder in SYSTEM_FOLDERS:
        host.apply(MakeDirectory(folder))
    join(host)
    assert host.programs == {"systemctl show": 11, "iptables-save": 1, "ip6tables-save": 1, "ip": 3, "nft": 1}
    done = Counter(type(action).__name__ for action in host.done)
    assert (done["EnableUnit"], done["StartUnit"], done["RestartUnit"], done["ReloadUnits"]) == (3, 3, 0, 0)
    assert sum(isinstance(each, WriteFile) and each.path == f"{DATA}/ledger.json" for each in host.done) <= 18


def leave(host: RecordedHost, config: NodeConfig | None = None) -> list[str]:
    return Unbootstrap(engine_on(host, config), None, ProgressReporter()).run()


def snapshot(host: RecordedHost) -> dict[str, tuple[FileEntry, bytes | None]]:
    """Returns all files, except the kernel's."""
    found: dict[str, tuple[FileEntry, bytes | None]] = {}

    def walk(folder: str) -> None:
        for name in host.list_dir(folder):
            path = f"{folder.rstrip('/')}/{name}"
            entry = host.stat(path)
            if entry and not path.startswith("/proc"):
                found[path] = (replace(entry, changed=0), host.read(path))
                if entry.kind.value == "directory":
                    walk(path)

    walk("/")
    return found


def unit_actions(host: RecordedHost) -> list[str]:
    return [str(action) for action in host.done if isinstance(action, StartUnit | RestartUnit)]


@pytest.mark.parametrize("values", [{}, CUSTOM, {"npd.enabled": False, "registryMirrors": {"x.io": ["https://m"]}}],
                         ids=["plain", "custom places", "other settings"])  # fmt: skip
def test_joined_node_has_no_diff_and_unbootstrap_restores_the_machine(values: Settings) -> None:
    host, config = empty_host(), config_of(values)
    host.apply(WriteFile("/etc/fstab", b"/swap none swap sw 0 0\n"))
    before = snapshot(host)
    engine = join(host, config)
    assert unit_actions(host)[:2] == ["start containerd.service", "start kubelet.service"]
    assert pending_actions(engine) == []
    assert leave(host, config) == []
    assert snapshot(host) == before


def test_unbootstrap_restores_files_that_existed_before_the_join() -> None:
    host = empty_host()
    for folder in ("/etc/containerd", "/var/lib/cni", "/data", "/data/images"):
        host.apply(MakeDirectory(folder, 0o711))
    host.apply(WriteFile("/etc/containerd/config.toml", b"theirs", 0o640))
    host.apply(WriteFile("/var/lib/cni/theirs", b""))
    host.apply(WriteFile("/usr/local/bin/kubectl", b"theirs", 0o755))
    host.apply(MakeLink("/usr/local/bin/ctr", "/usr/bin/ctr"))
    host.apply(MakeLink("/var/lib/containerd", "/data/images"))
    host.apply(WriteFile("/data/images/theirs", b""))
    before = snapshot(host)
    join(host)
    host.apply(WriteFile("/var/lib/cni/ours", b""))
    host.apply(WriteFile("/var/lib/containerd/ours", b""))
    assert leave(host) == []
    assert snapshot(host) == before


def test_unbootstrap_removes_what_it_can_when_its_state_is_read_only() -> None:
    host = empty_host()
    join(host)
    host.refuses = lambda action: action.subject.startswith(f"{DATA}/")
    host.failure = MachineError("filesystem-read-only", "The file system is read-only.")
    left = leave(host)
    assert host.stat("/etc/systemd/system/kubelet.service") is None
    assert host.stat("/var/lib/kubelet") is None
    assert any("read-only" in line for line in left)


def test_failed_command_that_changed_nothing_does_not_fail_the_node() -> None:
    host = empty_host()

    def refused() -> None:
        raise FlexError("sign-in-failed", "The secret is wrong.")

    join(host)
    before = node_state.read(host, STATE)
    with pytest.raises(FlexError, match="The secret is wrong"):
        join(host, announce=refused)
    assert node_state.read(host, STATE) == before
    host.apply(Remove("/etc/systemd/system/containerd.service"))  # repaired before the failure
    with pytest.raises(FlexError, match="The secret is wrong"):
        join(host, announce=refused)
    assert node_state.read(host, STATE).phase is Phase.NODE_FAILED


@pytest.mark.parametrize(
    ("values", "restarted"),
    [
        ({"node.labels": {"a": "b"}, "node.taints": ["edge=true:NoSchedule"]}, []),
        ({"node.maxPods": 50}, ["restart kubelet.service"]),
        ({"containerd.pauseImage": "pause:3.10"}, ["restart containerd.service"]),
        ({"runc.version": "1.4.0"}, ["restart containerd.service"]),
        ({"containerd.version": "2.1.0"}, ["restart containerd.service"]),
        ({"proxy.https": "http://proxy:3128"}, ["restart containerd.service", "restart kubelet.service"]),
        ({"kubernetes.version": "1.34.5"}, ["restart kubelet.service"]),
        ({"registryMirrors": {"x.io": ["https://m"]}}, []),
        ({"cni.version": "1.8.0"}, []),
    ],
    ids=str,
)
def test_config_change_restarts_only_affected_services(values: Settings, restarted: list[str]) -> None:
    host = empty_host()
    join(host)
    host.done.clear()
    join(host, config_of(values))
    assert unit_actions(host) == restarted


def test_join_writes_cni_config_and_stores_the_pod_cidr() -> None:
    host = empty_host()
    engine = join(host)
    assert b"10.244.3.0/24" in (host.read("/etc/cni/net.d/99-aks-flex-node.conflist") or b"")
    assert engine.machine.pod_cidr == "10.244.3.0/24"
    kept = node_state.read(host, STATE)
    assert (kept.phase, kept.pod_cidr, kept.node) == (Phase.NODE_JOINED, "10.244.3.0/24", "edge-1")


def test_disabling_npd_removes_its_unit() -> None:
    host = empty_host()
    join(host)
    join(host, config_of({"npd.enabled": False}))
    assert host.stat("/etc/systemd/system/node-problem-detector.service") is None
    unit = host.unit("node-problem-detector.service")
    assert (unit.active, unit.enabled) == ("inactive", False)


def test_failed_join_records_step_and_error_and_unbootstraps_cleanly() -> None:
    host, watcher = empty_host(), RecordingProgress()
    before = snapshot(host)
    engine = ready_engine(host)
    with pytest.raises(ClusterError):
        NodeJoin(engine, Refusing(host, engine.config), watcher).run()
    assert watcher.lines == [
        *(f"{component.name} done" for component in SEQUENCE if component.name != "tools"),
        "readiness failed: bootstrap-token-rejected",
    ]
    kept = node_state.read(host, STATE)
    assert (kept.phase, kept.step, kept.error) == (Phase.NODE_FAILED, "readiness", "bootstrap-token-rejected")
    assert leave(host) == []
    assert snapshot(host) == before
    assert not [name for name in pod_cleanup.SERVICES if host.unit(name).enabled or host.unit(name).running]


def test_join_goes_on_with_a_new_token_when_an_attempt_used_the_first() -> None:
    """A power cut can lose the certificate for which the bootstrap token was used."""
    host = empty_host()
    engine = ready_engine(host)
    renewed: list[str] = []

    def renew() -> bool:
        renewed.append("token")
        host.done.clear()
        return True

    assert NodeJoin(engine, RefusingOnce(host, engine.config), renew_token=renew).run() == NODE
    assert (renewed, host.done[0]) == (["token"], RestartUnit("kubelet.service"))


@pytest.mark.parametrize("renew", [None, lambda: False])
def test_join_fails_when_there_is_no_new_token(renew: Callable[[], bool] | None) -> None:
    host = empty_host()
    engine = ready_engine(host)
    with pytest.raises(ClusterError, match="not accepted"):
        NodeJoin(engine, RefusingOnce(host, engine.config), renew_token=renew).run()


def test_join_without_readiness_check_returns_no_node() -> None:
    host = empty_host()
    engine = ready_engine(host)
    assert NodeJoin(engine, None).run() is None


@pytest.mark.parametrize(
    ("only", "is_node", "proven"),
    [
        (("runc",), False, False),
        (("tools",), False, False),
        (("kubelet",), False, True),
        (("runc",), True, False),
        (("tools",), True, True),  # as when an interrupted join continues
    ],
)
def test_join_waits_for_the_node_only_when_it_can_exist(only: tuple[str, ...], is_node: bool, proven: bool) -> None:
    host = empty_host()
    if is_node:
        join(host)
    engine = ready_engine(host)
    before = node_state.read(host, STATE).phase

    node = NodeJoin(engine, Proven(host, engine.config)).run(phases.choose_phases(only).components)

    assert (node is not None) is proven
    assert node_state.read(host, STATE).phase == (Phase.NODE_JOINED if proven else before)


def test_join_without_a_phase_of_a_component_changes_no_phase() -> None:
    host = empty_host()
    engine = ready_engine(host)
    assert (
        NodeJoin(engine, Proven(host, engine.config)).run(phases.choose_phases(["npd"], skip=["npd"]).components)
        is None
    )
    assert node_state.read(host, STATE).phase is Phase.NOT_STARTED


def test_agent_service_runs_until_unbootstrap_is_complete() -> None:
    host, config = empty_host(), config_of({"continuousMonitoring": True})
    engine = join(host, config)
    for component in AGENT_COMPONENTS:
        engine.apply(component)
    host.refuses = lambda action: action == Remove("/usr/local/sbin/runc")
    assert "The disk is full." in leave(host, config)
    assert host.unit("aks-flex-node.service").running
    assert node_state.read(host, STATE).phase == Phase.RESETTING
    host.refuses = None
    assert leave(host, config) == []
    assert not host.unit("aks-flex-node.service").running


def test_unbootstrap_lists_artifacts_and_foreign_files_that_it_keeps() -> None:
    calico = "/etc/cni/net.d/10-calico.conflist"  # of the cluster's network plugin, not of a package
    host = empty_host({("dpkg-query", "--search", calico): CommandResult(1)})
    host.apply(MakeDirectory("/etc/cni/net.d"))
    host.apply(WriteFile("/etc/cni/net.d/87-podman.conflist", b"{}"))
    join(host)
    host.apply(WriteFile(calico, b"{}"))
    host.apply(WriteFile(f"{DATA}/artifacts/file", b""))
    leaving = Unbootstrap(engine_on(host), None, ProgressReporter(), keep_artifacts=True)
    assert leaving.run() == []
    assert host.stat(f"{DATA}/artifacts/file") is not None
    assert sorted(leaving.left_on_purpose()) == [
        "/etc/cni/net.d: 87-podman.conflist (not created by aks-flex-node)",
        f"{DATA}/artifacts (--keep-artifacts)",
    ]


def test_unbootstrap_keeps_lines_added_to_fstab_after_the_join() -> None:
    host = empty_host()
    host.apply(WriteFile("/etc/fstab", b"/swap none swap sw 0 0\n"))
    join(host)
    host.apply(EditFile("/etc/fstab", (host.read("/etc/fstab") or b"") + b"/dev/b /b ext4 defaults 0 0\n"))
    leave(host)
    assert host.read("/etc/fstab") == b"/swap none swap sw 0 0\n/dev/b /b ext4 defaults 0 0\n"


def test_unbootstrap_resets_failed_units() -> None:
    host = empty_host()
    join(host)
    host._units["kubelet.service"] = UnitState("kubelet.service", exists=True, enabled=True, active="failed")
    assert leave(host) == []
    assert host.unit("kubelet.service").active == "inactive"


def stage(ran: list[str], error: FlexError | None = None) -> PrerequisiteStage:
    def run() -> None:
        ran.append("tunnel")
        if error:
            raise error

    return PrerequisiteStage(phases.VPN, Phase.VPN_BOOTSTRAPPING, Phase.VPN_CONNECTED, Phase.VPN_FAILED, run)


def test_prerequisite_stages_run_before_components_and_refresh_the_machine() -> None:
    host, ran = empty_host(), list[str]()
    engine = ready_engine(host)
    there = replace(MACHINE, address="192.168.100.2")
    introduced = lambda: ran.append(node_state.read(host, STATE).phase.value)  # noqa: E731
    NodeJoin(engine, Proven(host, engine.config), ProgressReporter(), [stage(ran)], lambda: there, introduced).run()
    assert ran == ["tunnel", "NodeBootstrapping"]
    assert engine.machine.address == "192.168.100.2"
    assert node_state.read(host, STATE).phase == Phase.NODE_JOINED


def test_failed_prerequisite_stage_is_recorded_and_nothing_is_installed() -> None:
    host, ran = empty_host(), list[str]()
    engine = ready_engine(host)
    error = FlexError("vpn-away", "The gateway does not answer.")
    with pytest.raises(FlexError, match="does not answer"):
        NodeJoin(engine, Proven(host, engine.config), ProgressReporter(), [stage(ran, error)]).run()
    known = node_state.read(host, STATE)
    assert (known.phase, known.step, known.error) == (Phase.VPN_FAILED, "vpn", "vpn-away")
    assert host.stat("/etc/containerd") is None


def test_unbootstrap_runs_azure_cleanup_once_and_lists_manual_commands() -> None:
    host, taken = empty_host(), list[str]()
    join(host)

    def back() -> list[str]:
        taken.append("arc")
        return ["az resource delete --ids x"]

    leaving = Unbootstrap(engine_on(host), None, ProgressReporter(), azure_cleanups=[("arc", "Arc forgets", back)])
    assert leaving.run() == []
    assert (taken, leaving.manual_commands) == (["arc"], ["az resource delete --ids x"])
    again = Unbootstrap(engine_on(host), None, ProgressReporter(), azure_cleanups=[("arc", "Arc forgets", back)])
    again.run()
    assert taken == ["arc"]  # a machine that is not a node has nothing to clean up in Azure


def test_provider_removes_what_the_agent_may_not() -> None:
    machine, role = "/subscriptions/1/machines/edge-1", "/subscriptions/1/roleAssignments/2"
    commands = [f"az role assignment delete --ids {role}", f"az resource delete --ids {machine}  # only if unused"]
    host, told = empty_host(), list[list[str]]()
    join(host)

    def report(remaining: list[str]) -> list[str]:
        told.append(remaining)
        return [role]

    cleanups = [("arc", "unregister from Azure Arc", lambda: commands)]
    leaving = Unbootstrap(engine_on(host), None, ProgressReporter(), azure_cleanups=cleanups, report_remaining=report)

    assert leaving.run() == []
    assert told == [[role, machine]]
    assert leaving.manual_commands == commands[1:]


def test_every_state_file_of_the_agent_is_removed() -> None:
    known = {value for name, value in vars(paths).items() if name.isupper() and isinstance(value, str)}
    below = {value for value in known if value.startswith(f"{paths.STATE_DIR}/")}
    assert below, "the constants have been renamed"
    assert below - set(AGENT_FILES) == set()


def test_running_download_is_stopped_before_its_files_are_removed() -> None:
    host = empty_host()
    host.apply(StartUnit(STAGE_UNIT))
    host.done.clear()
    Unbootstrap(engine_on(host), None, ProgressReporter()).run()
    assert host.done.index(StopUnit(STAGE_UNIT)) < host.done.index(RemoveTree(f"{DATA}/artifacts"))
