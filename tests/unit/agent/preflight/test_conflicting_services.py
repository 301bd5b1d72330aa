"""Tests of conflicts on the machine: used ports, another runtime, leftovers of an earlier node."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from aks_flex_node.agent.preflight import build_context
from aks_flex_node.agent.preflight.artifact_checks import missing_artifacts
from aks_flex_node.agent.preflight.check import with_marked
from aks_flex_node.agent.preflight.conflict_checks import proc_link_names
from aks_flex_node.agent.preflight.port_checks import NodePort, PortListener, conflicts, listeners
from aks_flex_node.agent.reconcile.resources import MANAGED_MARK
from aks_flex_node.host.actions import MakeLink
from aks_flex_node.host.host import CommandResult, UnitState
from tests.unit.agent.builders import engine_on
from tests.unit.agent.preflight.builders import MACHINE, TCP, config, findings, fit, host, severities, told

if TYPE_CHECKING:
    from tests.hosts.recorded import RecordedHost

NODE = frozenset({"kubelet.service", "containerd.service"})
ROW = "   0: {address}:{port:04X} 00000000:0000 {state} 00000000:00000000 00:00000000 00000000 0 0 {inode} 1\n"


LINKS = "Inter-|   Receive\n face |bytes\n    lo: 1 2 3\n  eth0: 1 2\n flex0: 0 0\n"


def row(port: int, address: str = "00000000", state: str = "0A", inode: str = "777") -> str:
    return ROW.format(address=address, port=port, state=state, inode=inode)


def with_listener(port: int, pid: int = 42, name: str = "nginx", **units: UnitState) -> RecordedHost:
    """Returns a machine on which a process listens."""
    found = host(
        {"/proc/net/tcp": TCP + row(port), f"/proc/{pid}/comm": f"{name}\n", f"/proc/{pid}/fd/.keep": ""},
        {state.name: state for state in units.values()},
    )
    found.apply(MakeLink(f"/proc/{pid}/fd/3", "socket:[777]"))
    return found


def running(name: str, pid: int = 42) -> UnitState:
    return UnitState(name, exists=True, enabled=True, active="active", pid=pid)


def test_listening_ports_are_parsed_without_connections() -> None:
    table = TCP + row(10250) + row(10248, "0100007F") + row(80, state="01")
    sixth = row(10250, "00000000000000000000000000000000") + row(1, "0000000000000000FFFF00000100007F")

    assert listeners(table) == [PortListener("0.0.0.0", 10250, "777"), PortListener("127.0.0.1", 10248, "777")]  # noqa: S104
    assert [each.address for each in listeners(TCP + sixth)] == ["::", "127.0.0.1"]
    assert listeners("") == []


@pytest.mark.parametrize(
    ("wanted", "taken", "expected"),
    [
        ("127.0.0.1", "127.0.0.1", True),
        ("127.0.0.1", "::", True),
        ("127.0.0.1", "192.0.2.7", False),
        ("0.0.0.0", "192.0.2.7", True),  # noqa: S104
    ],
)
def test_port_conflicts_only_on_overlapping_addresses(wanted: str, taken: str, expected: bool) -> None:
    assert conflicts(NodePort(10248, "x", wanted), PortListener(taken, 10248, "1")) is expected


def test_preflight_names_the_process_that_holds_a_required_port() -> None:
    (found,) = findings(fit(host=with_listener(10250)), "ports")

    assert found.severity.value == "error"
    assert "Port 10250 is used by nginx (process 42), but the kubelet needs it." in found.message
    assert "ss -ltnp" in found.remedy


def test_preflight_names_setting_for_movable_port_and_warns_for_optional() -> None:
    assert "containerd.metricsAddress" in told(fit(host=with_listener(10257)), "ports")
    assert severities(fit(host=with_listener(10256)), "ports") == ["warning"]
    moved = config({"containerd": {"metricsAddress": ""}})
    assert severities(fit(host=with_listener(10257), config=moved), "ports") == ["ok"]


def test_preflight_accepts_ports_held_by_our_own_kubelet() -> None:
    ours = with_listener(10250, name="kubelet", kubelet=running("kubelet.service"))
    stranger = with_listener(10250, kubelet=running("kubelet.service", 7))

    assert "error" not in severities(fit(host=ours, owned_services=NODE), "ports")
    assert severities(fit(host=stranger, owned_services=NODE), "ports") == ["error"]


@pytest.mark.parametrize(
    "unit", ["docker.service", "containerd.service", "kubelet.service", "k3s.service", "crio.service"]
)
def test_preflight_reports_a_running_runtime_and_warns_of_a_stopped_one(unit: str) -> None:
    (found,) = findings(fit(host=host(units={unit: running(unit)})), "other-runtime")
    assert found.severity.value == "error"
    assert "sudo systemctl disable --now" in found.remedy
    assert severities(fit(host=host(units={unit: UnitState(unit, exists=True)})), "other-runtime") == ["warning"]


def test_preflight_does_not_report_our_own_services_as_foreign_runtimes() -> None:
    files = {"/proc/42/comm": "kubelet\n", "/proc/43/comm": "containerd\n"}
    units = {"kubelet.service": running("kubelet.service"), "containerd.service": running("containerd.service", 43)}

    assert severities(fit(host=host(files, units), owned_services=NODE), "other-runtime") == ["ok"]


@pytest.mark.parametrize(
    ("name", "group"),
    [("kubelet", "system.slice/kubelet.service"), ("containerd", "kubepods.slice/x")],
    ids=["restarting service", "in a pod"],
)
def test_preflight_recognizes_processes_of_our_node_by_their_cgroup(name: str, group: str) -> None:
    files = {"/proc/77/comm": f"{name}\n", "/proc/77/cgroup": f"0::/{group}\n"}
    units = {"kubelet.service": running("kubelet.service", 78)}

    assert severities(fit(host=host(files, units), owned_services=NODE), "other-runtime") == ["ok"]
    assert severities(fit(host=host(files)), "other-runtime") == ["error"]


@pytest.mark.parametrize(
    ("path", "severity"),
    [
        ("/etc/kubernetes/kubelet.conf", "error"),
        ("/var/lib/kubelet/pki/kubelet.crt", "error"),
        ("/etc/kubernetes/manifests/etcd.yaml", "error"),
        ("/etc/cni/net.d/10-flannel.conflist", "warning"),
        ("/var/lib/etcd/member/wal", "warning"),
        ("/var/lib/containerd/io.containerd.content.v1.content/x", "warning"),
        ("/sys/fs/cgroup/kubepods.slice/cgroup.procs", "warning"),
        ("/usr/local/bin/kubelet", "warning"),
        ("/etc/containerd/config.toml", "warning"),
    ],
)
def test_preflight_reports_leftovers_with_severity_and_remedy(path: str, severity: str) -> None:
    (found,) = findings(fit(host=host({path: "x"})), "leftovers")

    assert found.severity.value == severity
    assert found.remedy


def test_preflight_names_the_command_to_delete_leftover_pod_links() -> None:
    assert proc_link_names(LINKS) == ["lo", "eth0", "flex0"]
    assert "sudo ip link delete flex0" in told(fit(host=host({"/proc/net/dev": LINKS})), "leftovers")


def test_preflight_names_the_installed_package_to_remove() -> None:
    asked = ("dpkg-query", "-W", "-f=${Package} ${db:Status-Status}\n", "docker.io", "docker-ce")
    answer = CommandResult(1, "docker-ce installed\ndocker.io config-files\n", "no packages found")
    units = {"docker.service": UnitState("docker.service", exists=True)}

    assert "Run `sudo apt-get remove docker-ce` to remove it" in told(
        fit(host=host(units=units, answers={asked: answer})), "other-runtime"
    )
    assert "apt-get" not in told(fit(host=host(units=units)), "other-runtime")


def test_preflight_warns_of_podman() -> None:
    assert severities(fit(host=host({"/usr/bin/podman": ""})), "other-runtime") == ["warning"]


def test_preflight_without_a_ledger_recognizes_our_units_by_their_mark() -> None:
    unit = "/etc/systemd/system/kubelet.service"
    files = {
        unit: f"# {MANAGED_MARK}\n",
        "/var/lib/kubelet/pki/kubelet.crt": "",
        "/etc/kubernetes/manifests/proxy.yaml": "",
        "/proc/net/tcp": TCP + row(10250),
        "/proc/42/comm": "kubelet\n",
        "/proc/42/fd/.keep": "",
    }
    for text, severity in ((f"# {MANAGED_MARK}\n", "ok"), ("theirs", "error")):
        found = host({**files, unit: text}, {"kubelet.service": running("kubelet.service")})
        found.apply(MakeLink("/proc/42/fd/3", "socket:[777]"))
        plain = fit(host=found)
        known = with_marked(plain, plain.specs)
        for check in ("ports", "other-runtime", "leftovers"):
            assert severity in severities(known, check), check
            assert severity == "error" or "error" not in severities(known, check)


def test_preflight_ignores_marked_files_and_links_to_our_programs() -> None:
    found = host({"/etc/containerd/config.toml": f"# {MANAGED_MARK}\n"})
    found.apply(MakeLink("/usr/local/bin/kubelet", "/opt/aks-flex-node/kubernetes/1.34.4/bin/kubelet"))

    assert severities(fit(host=found), "leftovers") == ["ok"]


def test_preflight_checks_only_artifacts_of_selected_components() -> None:
    engine = engine_on(host(), config(), MACHINE)
    chosen = build_context(engine, {"runc", "kubelet"})

    assert {artifact.component for artifact in missing_artifacts(chosen)} == {"runc"}
    assert len(missing_artifacts(build_context(engine))) > 3


def test_preflight_does_not_report_owned_files_as_leftovers() -> None:
    files = {
        "/var/lib/kubelet/pki/kubelet.crt": "",
        "/var/lib/containerd/x": "",
        "/etc/cni/net.d/10-azure.conflist": "",
        "/usr/local/bin/kubelet": "",
        "/proc/net/dev": LINKS,
        "/etc/kubernetes/manifests/proxy.yaml": "",
    }
    ours = {"owned_paths": frozenset({"/usr/local/bin/kubelet"}), "owned_services": NODE}
    trees = frozenset({"/var/lib/kubelet", "/var/lib/containerd"})

    assert severities(fit(host=host(files), owned_trees=trees, **ours), "leftovers") == ["ok"]
