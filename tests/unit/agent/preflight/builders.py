"""A machine that passes all checks, and functions to change it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from aks_flex_node.agent.components.catalog import SEQUENCE
from aks_flex_node.agent.machine import Machine
from aks_flex_node.agent.preflight import CheckFinding, PreflightContext, run_checks
from aks_flex_node.agent.preflight.artifact_checks import missing_artifacts
from aks_flex_node.agent.preflight.host_checks import RECOMMENDED_PROGRAMS, REQUIRED_PROGRAMS
from aks_flex_node.agent.preflight.interfaces import FileSystemInfo, ProbeFailed, ProbeResponse
from aks_flex_node.agent.preflight.registry import NAMES
from tests.hosts.recorded import RecordedHost
from tests.unit.agent.config.builders import CA, TOKEN, node_config
from tests.unit.agent.preflight.fakes import RecordedNetworkProbe

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aks_flex_node.agent.preflight.interfaces import ProbeRequest
    from aks_flex_node.host.host import CommandResult, UnitState
    from aks_flex_node.settings.models import NodeConfig

SERVER = "https://api.example:443"
REVIEWS = f"{SERVER}/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
NOW = 1_790_000_000.0
GIB = 1 << 30
MACHINE = Machine(hostname="edge-1", system="debian", release="12", kernel="6.1.0-18-amd64")
CONTROLLERS = "cpuset cpu io memory hugetlb pids rdma misc\n"
TCP = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
FILES: dict[str, bytes | str] = {
    "/sys/fs/cgroup/cgroup.controllers": CONTROLLERS,
    "/proc/modules": "overlay 1 0 - Live 0x0\nbr_netfilter 1 0 - Live 0x0\n",
    "/proc/swaps": "Filename\tType\tSize\tUsed\tPriority\n",
    "/proc/meminfo": "MemTotal:        4023456 kB\nMemFree: 1 kB\n",
    "/sys/devices/system/cpu/online": "0-3\n",
    "/proc/self/mountinfo": "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n",
    "/proc/net/tcp": TCP,
    **{f"/usr/sbin/{name}": "" for name in (*REQUIRED_PROGRAMS, *RECOMMENDED_PROGRAMS)},
}
ROOM = FileSystemInfo(1, 50 * GIB, 100 * GIB, 6_000_000, 6_500_000)
ANSWERS: dict[str, ProbeResponse | ProbeFailed] = {
    f"{SERVER}/version": ProbeResponse(200, NOW, {"gitVersion": "v1.34.4"}),
    f"{SERVER}/healthz": ProbeResponse(200, NOW),
    REVIEWS: ProbeResponse(201, NOW, {"status": {"allowed": True}}),
}
NAMES_KNOWN = dict.fromkeys(("api.example", "github.com", "dl.k8s.io"), ("192.0.2.1",))


def config(changes: Mapping[str, Any] | None = None) -> NodeConfig:
    document: dict[str, Any] = {
        "azure": {"bootstrapToken": {"token": TOKEN}},
        "node": {"kubelet": {"serverURL": SERVER, "caCertData": CA}},
        "kubernetes": {"version": "1.34.4"},
    }
    for section, values in (changes or {}).items():
        document[section] = {**document.get(section, {}), **values}
    return node_config(document)


def host(
    files: Mapping[str, bytes | str] | None = None,
    units: Mapping[str, UnitState] | None = None,
    answers: Mapping[tuple[str, ...], CommandResult] | None = None,
    without: tuple[str, ...] = (),
) -> RecordedHost:
    """Returns the passing machine with other files, units and command results, and without some files."""
    kept = {path: content for path, content in {**FILES, **(files or {})}.items() if path not in without}
    return RecordedHost(kept, answers, units)


def fit(**changes: Any) -> PreflightContext:
    """Returns the context of a passing machine, with these changes."""
    settings = changes.get("config", config())
    specs = tuple(component.desired(settings, MACHINE) for component in SEQUENCE)
    plain = PreflightContext(host(), settings, MACHINE, RecordedNetworkProbe(), lambda _: ROOM, lambda: NOW, specs)
    files = {url: ProbeResponse(206) for each in missing_artifacts(plain) for url in (each.url, *each.checksums[:1])}
    network = RecordedNetworkProbe(NAMES_KNOWN, {**ANSWERS, **files})
    return replace(plain, **{"network": network, **changes})


def answering(
    answers: Mapping[str, ProbeResponse | ProbeFailed], *, once: bool = False, **changes: Any
) -> PreflightContext:
    """Returns the same context with other responses of some URLs, always or once."""
    usual = fit(**changes)
    network = usual.network
    assert isinstance(network, RecordedNetworkProbe)
    return replace(usual, network=network.with_answers(answers, once=once))


def findings(situation: PreflightContext, check: str) -> list[CheckFinding]:
    """Returns the findings of one check."""
    return run_checks(situation, set(NAMES) - {check})


def severities(situation: PreflightContext, check: str) -> list[str]:
    return [finding.severity.value for finding in findings(situation, check)]


def requests_of(situation: PreflightContext, check: str) -> list[ProbeRequest]:
    """Returns the requests that a check sends."""
    assert isinstance(situation.network, RecordedNetworkProbe)
    findings(situation, check)
    return situation.network.asked


def told(situation: PreflightContext, check: str) -> str:
    """Returns all messages of one check in one text."""
    return "\n".join(f"{each.severity.value}: {each.message} {each.remedy}" for each in findings(situation, check))
