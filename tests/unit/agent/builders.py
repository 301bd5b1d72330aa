"""Builders of a configuration, a machine and installed programs."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from aks_flex_node.agent.cluster.client import STRATEGIC_MERGE_PATCH, ApiStatusError
from aks_flex_node.agent.components.catalog import SEQUENCE
from aks_flex_node.agent.context import ledger_paths
from aks_flex_node.agent.event_log import EventLog
from aks_flex_node.agent.machine import Machine
from aks_flex_node.agent.reconcile.engine import Engine
from aks_flex_node.agent.reconcile.ledger import Ledger
from aks_flex_node.agent.reconcile.program_stager import ProgramStager
from aks_flex_node.agent.reconcile.resources import Directory, File, ProgramTree, Service, Symlink
from aks_flex_node.host.actions import MakeDirectory, WriteFile
from tests.hosts.recorded import RecordedHost
from tests.unit.agent.config.builders import CA, TOKEN, Settings, load_settings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from aks_flex_node.agent.cluster.client import ApiClient
    from aks_flex_node.agent.reconcile.component import Component
    from aks_flex_node.agent.reconcile.resources import Spec
    from aks_flex_node.host.actions import Action
    from aks_flex_node.host.host import CommandResult
    from aks_flex_node.settings.models import NodeConfig

JOIN: Settings = {
    "node.kubelet.serverURL": "https://cluster.example:443",
    "node.kubelet.caCertData": CA,
    "azure.bootstrapToken.token": TOKEN,
    "kubernetes.version": "1.34.4",
}
MACHINE = Machine(hostname="edge-1", address="198.18.0.5")
DATA = "/var/lib/aks-flex-node"
SYSTEM_FOLDERS = (
    "/etc /etc/systemd /etc/systemd/system /etc/default /etc/sysctl.d /etc/modules-load.d /opt /run /usr /usr/local"
    " /usr/local/bin /usr/local/sbin /var /var/lib /var/log /proc /srv"
).split()


def config_of(values: Settings | None = None, *, without: Sequence[str] = ()) -> NodeConfig:
    """Returns the minimum configuration for a join, with these settings."""
    given = {key: value for key, value in JOIN.items() if key not in without}
    return load_settings({**given, **(values or {})}).config


def empty_host(answers: Mapping[tuple[str, ...], CommandResult] | None = None) -> RecordedHost:
    """Returns a machine without any of our files, whose programs print these answers."""
    host = RecordedHost({"/proc/filesystems": "nodev\toverlay\n"}, answers)
    for folder in SYSTEM_FOLDERS:
        host.apply(MakeDirectory(folder))
    host.done.clear()
    return host


def engine_on(host: RecordedHost, config: NodeConfig | None = None, machine: Machine = MACHINE) -> Engine:
    config = config or config_of()
    return Engine(host, config, machine, Ledger(host, ledger_paths(config)), EventLog(), sync=lambda: None)


def ready_engine(host: RecordedHost, config: NodeConfig | None = None, machine: Machine = MACHINE) -> Engine:
    """Returns an engine whose programs are ready immediately."""
    engine = engine_on(host, config, machine)
    engine.stager = Ready(host)
    return engine


def install(host: RecordedHost, program: ProgramTree, contents: dict[str, bytes] | None = None) -> None:
    """Writes a program's files to its staging path, as the program stager does."""
    wanted = [file.path for each in program.artifacts for file in each.files if not file.is_prefix]
    files = contents or dict.fromkeys(wanted or ("bin/program",), b"program")
    for folder in (program.path.rpartition("/")[0], program.staging_path, f"{program.staging_path}/bin"):
        if host.stat(folder) is None:
            host.apply(MakeDirectory(folder))
    for name, content in files.items():
        host.apply(WriteFile(f"{program.staging_path}/{name}", content, 0o755))
    host.apply(WriteFile(f"{program.staging_path}/.manifest.json", manifest(files)))


def manifest(files: dict[str, bytes]) -> bytes:
    listed = {
        name: {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content), "mode": 0o755, "link": ""}
        for name, content in files.items()
    }
    return json.dumps({"format": 1, "component": "", "version": "", "artifacts": [], "files": listed}).encode()


class Ready(ProgramStager):
    """A program stager that has everything ready immediately."""

    def __init__(self, host: RecordedHost) -> None:
        self.host = host
        self.prepared: list[str] = []

    def prepare(self, programs: Sequence[ProgramTree]) -> None:
        self.prepared += [program.component for program in programs]

    def finish(self, program: ProgramTree, seconds: float) -> None:
        assert seconds > 0
        install(self.host, program)

    def close(self) -> None: ...


def desired(component: Any, values: Settings | None = None, **facts: Any) -> Spec:
    """Returns what a component wants with these settings, on a machine with these facts."""
    spec: Spec = component.desired(config_of(values), replace(MACHINE, **facts))
    return spec


def files_of(spec: Spec) -> dict[str, File]:
    return {one.path: one for one in spec.resources if isinstance(one, File)}


def text_of(spec: Spec, path: str) -> str:
    return files_of(spec)[path].content.decode()


def folders_of(spec: Spec) -> dict[str, Directory]:
    return {one.path: one for one in spec.resources if isinstance(one, Directory)}


def links_of(spec: Spec) -> dict[str, str]:
    return {one.path: one.target for one in spec.resources if isinstance(one, Symlink)}


def service_of(spec: Spec) -> Service:
    (found,) = [one for one in spec.resources if isinstance(one, Service)]
    return found


class Answers:
    """An API server with predefined responses, which records requests."""

    def __init__(self, answers: dict[tuple[str, str], list[Any]]) -> None:
        self.answers = answers
        self.asked: list[tuple[str, str]] = []
        self.bodies: list[Any] = []

    @property
    def client(self) -> ApiClient:
        return cast("ApiClient", self)

    def get(self, path: str) -> Any:
        return self.request("GET", path)

    def request(self, method: str, path: str, body: Any = None, content_type: str = "") -> Any:
        assert method != "PATCH" or content_type == STRATEGIC_MERGE_PATCH
        self.asked.append((method, path))
        self.bodies.append(body)
        answers = self.answers.get((method, path), [ApiStatusError(404, "NotFound", "there is no such thing")])
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


def pending_actions(engine: Engine, components: Sequence[Component] = SEQUENCE) -> list[tuple[str, Action]]:
    """Returns all pending actions; empty when the machine has its desired state."""
    return [(component.name, action) for component in components for action in engine.plan(component).actions]
