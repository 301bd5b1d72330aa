"""What a preflight check is, what it finds, and the frozen context that it sees: host, configuration, ledger,
network.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING

from aks_flex_node.agent.cluster.node_health import KUBELET_UNIT
from aks_flex_node.agent.config.resolved import kubelet_credential_file
from aks_flex_node.agent.preflight.interfaces import FileSystemInfo
from aks_flex_node.agent.reconcile.resources import MANAGED_MARK

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from collections.abc import Set as AbstractSet

    from aks_flex_node.agent.config.models import NodeConfig
    from aks_flex_node.agent.machine import Machine
    from aks_flex_node.agent.preflight.interfaces import NetworkProbe
    from aks_flex_node.agent.reconcile.ledger import Ledger
    from aks_flex_node.agent.reconcile.resources import Spec
    from aks_flex_node.host.host import Host


class Severity(str, Enum):
    OK = "ok"
    WARNING = "warning"  # the node will work, or will make it right by itself, but somebody should know
    ERROR = "error"  # the machine would not become a node, or would break what is there


@dataclass(frozen=True)
class CheckFinding:
    """One thing that a check found, and what to do about it."""

    check: str  # its name; the runner fills it in
    severity: Severity
    message: str
    remedy: str = ""


@dataclass(frozen=True)
class Check:
    """A question with a name by which it can be skipped."""

    name: str
    title: str
    run: Callable[[PreflightContext], Iterable[CheckFinding]]  # nothing found means that all is well
    remote: bool = False  # it asks others, whom a node that has joined can do without


def ok(message: str) -> CheckFinding:
    return CheckFinding("", Severity.OK, message)


def warning(message: str, remedy: str) -> CheckFinding:
    return CheckFinding("", Severity.WARNING, message, remedy)


def error(message: str, remedy: str) -> CheckFinding:
    return CheckFinding("", Severity.ERROR, message, remedy)


def as_warning(finding: CheckFinding) -> CheckFinding:
    """The same, but not as something that is in the way."""
    return replace(finding, severity=Severity.WARNING) if finding.severity is Severity.ERROR else finding


UNIT_DIRECTORY = "/etc/systemd/system"
MAX_MARKED_BYTES = 1 << 20  # no file of ours that bears a mark is larger


@dataclass(frozen=True)
class PreflightContext:
    host: Host  # asked, never told
    config: NodeConfig
    machine: Machine
    network: NetworkProbe
    file_system: Callable[[str], FileSystemInfo | None]  # of the file system at a path; None when nothing is there
    now: Callable[[], float]  # this machine's clock
    specs: tuple[Spec, ...] = ()  # all that the components want which are meant
    uid: int = 0
    owned_paths: frozenset[str] = frozenset()
    owned_trees: frozenset[str] = frozenset()  # directories that are ours with all that is in them
    owned_services: frozenset[str] = frozenset()

    @property
    def joined(self) -> bool:
        """Whether this machine is our node already: then a kubelet is no stranger here."""
        return KUBELET_UNIT in self.owned_services

    @property
    def has_credential(self) -> bool:
        """Whether our node has what it shows the cluster: then it can be repaired while the cluster is away."""
        return self.joined and self.exists(kubelet_credential_file(self.config))

    def owns(self, path: str) -> bool:
        return path in self.owned_paths or any(
            path == tree or path.startswith(f"{tree}/") for tree in self.owned_trees
        )

    def marked(self, path: str) -> bool:
        """Whether a file says of itself that it is ours, or a link leads to our programs."""
        try:
            entry = self.host.stat(path)
        except OSError:
            return False
        if entry is None or entry.target:
            return entry is not None and entry.target.startswith(f"{self.config.paths.install_dir}/")
        return entry.size < MAX_MARKED_BYTES and MANAGED_MARK in self.text(path)

    def text(self, path: str) -> str:
        """A file's text; empty when it is not there, or is not for us to read."""
        try:
            return (self.host.read(path) or b"").decode(errors="replace")
        except OSError:
            return ""

    def names(self, path: str) -> tuple[str, ...]:
        try:
            return self.host.list_dir(path)
        except OSError:
            return ()

    def exists(self, path: str) -> bool:
        try:
            return self.host.stat(path) is not None
        except OSError:
            return False


def build_context(
    host: Host, config: NodeConfig, machine: Machine, ledger: Ledger, components: AbstractSet[str] | None = None
) -> PreflightContext:
    """The situation of the machine we run on, for the components that are meant; for all of them by default."""
    from aks_flex_node.agent.components.catalog import SEQUENCE
    from aks_flex_node.agent.preflight.network import SystemNetworkProbe
    from aks_flex_node.agent.reconcile.program_stager import artifact_sources

    records = [item for owned in ledger.components.values() for item in owned.paths.items()]
    wanted = {component.name: component.desired(config, machine) for component in SEQUENCE}
    known = PreflightContext(
        host,
        config,
        machine,
        SystemNetworkProbe(artifact_sources(config)),
        file_system_at,
        time.time,
        tuple(spec for name, spec in wanted.items() if components is None or name in components),
        os.geteuid(),
        frozenset(path for path, _ in records),
        frozenset(path for path, record in records if record.get("ours") or record.get("kind") == "program"),
        frozenset(name for owned in ledger.components.values() for name in owned.services),
    )
    return with_marked(known, wanted.values())


def with_marked(known: PreflightContext, specs: Iterable[Spec]) -> PreflightContext:
    """The same, with what is ours though no ledger says so: units that bear our mark, and what they work on."""
    ours = [spec for spec in specs if any(known.marked(f"{UNIT_DIRECTORY}/{name}") for name in spec.fingerprints)]
    services = frozenset(name for spec in ours for name in spec.fingerprints)
    trees = {path for spec in ours for path in spec.owned_dirs}
    if KUBELET_UNIT in services:
        trees.add(known.config.paths.kubernetes.kubelet_dir)
    return replace(known, owned_trees=known.owned_trees | trees, owned_services=known.owned_services | services)


def file_system_at(path: str) -> FileSystemInfo | None:
    try:
        found, device = os.statvfs(path), os.stat(path).st_dev  # noqa: PTH116 - next to statvfs, which has no Path
    except (FileNotFoundError, NotADirectoryError):
        return None
    return FileSystemInfo(
        device,
        found.f_bavail * found.f_frsize,
        found.f_blocks * found.f_frsize,
        found.f_ffree,
        found.f_files,
        bool(found.f_flag & os.ST_RDONLY),
        bool(found.f_flag & os.ST_NOEXEC),
    )
