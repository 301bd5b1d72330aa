"""Defines preflight checks, their findings, and the frozen context that they read: host, configuration, ledger,
network.
"""

from __future__ import annotations

import os
import time
from dataclasses import replace
from enum import Enum
from typing import TYPE_CHECKING

from aks_flex_node.agent.cluster.node_health import KUBELET_UNIT, has_kubelet_credential
from aks_flex_node.agent.preflight.interfaces import FileSystemInfo
from aks_flex_node.agent.reconcile.resources import Spec, is_marked
from aks_flex_node.host.host import Host, read_text
from aks_flex_node.lean_dataclass import frozen

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from collections.abc import Set as AbstractSet

    from aks_flex_node.agent.machine import Machine
    from aks_flex_node.agent.preflight.network import NetworkProbe
    from aks_flex_node.agent.reconcile.engine import Engine
    from aks_flex_node.settings.models import NodeConfig


class Severity(str, Enum):
    OK = "ok"
    WARNING = "warning"  # the node will work or correct this automatically, but the operator should know
    ERROR = "error"  # the machine would not become a node, or existing software would break


@frozen
class CheckFinding:
    """One finding of a check, and its remedy."""

    check: str  # name of the check, set by the runner
    severity: Severity
    message: str
    remedy: str = ""


@frozen
class Check:
    """A preflight check. It can be skipped by its name."""

    name: str
    title: str
    run: Callable[[PreflightContext], Iterable[CheckFinding]]  # no findings mean success
    remote: bool = False  # depends on other hosts, which a joined node does not need


def ok(message: str) -> CheckFinding:
    return CheckFinding("", Severity.OK, message)


def warning(message: str, remedy: str) -> CheckFinding:
    return CheckFinding("", Severity.WARNING, message, remedy)


def error(message: str, remedy: str) -> CheckFinding:
    return CheckFinding("", Severity.ERROR, message, remedy)


def as_warning(finding: CheckFinding) -> CheckFinding:
    """Returns the finding as a warning if it is an error."""
    return replace(finding, severity=Severity.WARNING) if finding.severity is Severity.ERROR else finding


UNIT_DIRECTORY = "/etc/systemd/system"


def sign_in_to_azure(config: NodeConfig, scope: str, operator: bool) -> None:
    """Gets a token of the node's identity or of its operator. The token is discarded."""
    from aks_flex_node.agent.identity import azure_sign_in

    azure_sign_in.sign_in(config, scope, operator=operator)


@frozen
class PreflightContext:
    host: Host  # read-only
    config: NodeConfig
    machine: Machine
    network: NetworkProbe
    file_system: Callable[[str], FileSystemInfo | None]  # file system at a path; None if the path does not exist
    now: Callable[[], float]  # clock of this machine
    specs: tuple[Spec, ...] = ()  # desired state of the selected components
    uid: int = 0
    owned_paths: frozenset[str] = frozenset()
    owned_trees: frozenset[str] = frozenset()  # directories that the agent owns with all content
    owned_services: frozenset[str] = frozenset()
    sign_in: Callable[[NodeConfig, str, bool], object] = sign_in_to_azure  # configuration, scope, as the operator

    @property
    def joined(self) -> bool:
        """Returns whether this machine is already a node of the agent, so that its kubelet is not a conflict."""
        return KUBELET_UNIT in self.owned_services

    @property
    def has_credential(self) -> bool:
        """Returns whether the node has a cluster credential, so that it can be repaired while the cluster is
        unavailable.
        """
        return self.joined and has_kubelet_credential(self.host, self.config)

    def owns(self, path: str) -> bool:
        return path in self.owned_paths or any(
            path == tree or path.startswith(f"{tree}/") for tree in self.owned_trees
        )

    def marked(self, path: str) -> bool:
        """Returns whether a file has the management mark, or a link points to the agent's programs."""
        try:
            return is_marked(self.host, path, self.config.paths.install_dir)
        except OSError:
            return False

    def text(self, path: str) -> str:
        """Returns the text of a file, or an empty string if it is missing or unreadable."""
        try:
            return read_text(self.host, path)
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


def build_context(engine: Engine, components: AbstractSet[str] | None = None) -> PreflightContext:
    """Builds the context of this machine for the selected components (default: all)."""
    from aks_flex_node.agent.components.catalog import SEQUENCE
    from aks_flex_node.agent.preflight.network import NetworkProbe
    from aks_flex_node.agent.reconcile.program_stager import artifact_sources

    host, config, machine, ledger = engine.host, engine.config, engine.machine, engine.ledger
    if config.azure.service_principal or config.azure.workload_identity:
        import azure.identity  # noqa: F401 - before threads start: concurrent imports can deadlock

    desired = {component.name: component.desired(config, machine) for component in SEQUENCE}
    known = PreflightContext(
        host,
        config,
        machine,
        NetworkProbe(artifact_sources(config)),
        file_system_at,
        time.time,
        tuple(spec for name, spec in desired.items() if components is None or name in components),
        os.geteuid(),
        frozenset(path for path, _ in ledger.records),
        frozenset(path for path, record in ledger.records if record.get("ours") or record.get("kind") == "program"),
        ledger.services,
    )
    return with_marked(known, desired.values())


def with_marked(known: PreflightContext, specs: Iterable[Spec]) -> PreflightContext:
    """Adds what the agent owns without a ledger entry: units with the management mark, and their directories."""
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
