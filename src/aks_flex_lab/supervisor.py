"""Starts, finds and stops the long-running components of a lab, with TCP and HTTPS readiness probes."""

from __future__ import annotations

import hashlib
import http.client
import json
import re
import ssl
import time
from contextlib import closing
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from aks_flex_lab import processes
from aks_flex_lab.errors import ComponentError
from aks_flex_lab.files import last_lines, write_atomically
from aks_flex_lab.kernel.cgroups import LabCgroups

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from aks_flex_lab.kernel.namespaces import NetworkNamespace
    from aks_flex_lab.layout import LabLayout
    from aks_flex_lab.processes import ProcessHandle


# All components of a running lab, in the order of their start.
COMPONENT_NAMES = (
    *("etcd", "dns", "registry", "mirror", "toxiproxy"),
    *("azure", "kube-apiserver", "gateway", "kube-controller-manager", "kube-scheduler"),
    *("provider", "provider-gateway", "vpn"),
)
OPTIONAL_COMPONENTS = ("pod-routes",)  # part of a lab once they are installed
METADATA_PREFIX = "metadata-"  # followed by the name of a site; runs at sites whose machines have managed identities
# /etc/resolv.conf belongs to the whole host, so the program gets a mount namespace with its own file.
RESOLV_CONF_WRAPPER = ("unshare", "--mount", "sh", "-c", 'mount --bind "$0" /etc/resolv.conf && exec "$@"')
READY_SECONDS = 60
PROBE_SECONDS = 2
ERROR_LINE = re.compile(r"^[EF]\d{4} |error|fatal|panic|failed|cannot", re.IGNORECASE)


@dataclass(frozen=True)
class LabComponent:
    name: str
    argv: tuple[str | Path, ...]
    address: str  # the address that `status` shows
    ready: Callable[[], bool]
    namespace: NetworkNamespace | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[Path, str] = field(default_factory=dict)  # configuration files, written before it starts
    resolver: Path | None = None  # a resolv.conf that replaces the host's

    @property
    def key(self) -> str:
        """A key that changes when the command, environment or configuration of the component changes."""
        inputs = json.dumps(
            [
                [str(word) for word in self.argv],
                dict(self.env),
                {str(path): text for path, text in self.files.items()},
            ]
        )
        return hashlib.sha256(inputs.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class ComponentState:
    """The observed state of a component."""

    name: str
    address: str
    up: bool
    pid: int | None
    last_lines: tuple[str, ...]  # only for a component that should run but does not


@dataclass(frozen=True)
class ComponentSupervisor:
    """Starts, finds and stops the components of one lab. It is not a process."""

    layout: LabLayout

    def directory(self, name: str) -> Path:
        return self.layout.components / name

    def log(self, name: str) -> Path:
        return self.directory(name) / "log"

    def process(self, name: str) -> ProcessHandle | None:
        record = self.directory(name) / "process.json"
        if not record.exists():
            return None
        process = processes.ProcessHandle(**json.loads(record.read_text())["process"])
        return process if process.alive else None

    def start(self, component: LabComponent) -> None:
        """Starts a component unless it runs with the same configuration. Does not wait until it is ready."""
        record = self.directory(component.name) / "process.json"
        running = self.process(component.name)
        if running and json.loads(record.read_text())["key"] == component.key:
            return
        if running:
            running.stop()
        groups = LabCgroups(self.layout.name)
        leaf = f"part-{component.name}"
        groups.kill(leaf)  # A killed `up` may have started a process without recording it.
        for path, text in component.files.items():
            write_atomically(path, text, 0o600)
        self.directory(component.name).mkdir(parents=True, exist_ok=True)
        inner = (*RESOLV_CONF_WRAPPER, component.resolver, *component.argv) if component.resolver else component.argv
        argv = component.namespace.command(*inner) if component.namespace else inner
        process = processes.spawn(groups.join_command(leaf, argv), log=self.log(component.name), env=component.env)
        record_document = {"key": component.key, "address": component.address, "process": asdict(process)}
        write_atomically(record, json.dumps(record_document))

    def wait(self, component: LabComponent, seconds: float = READY_SECONDS) -> None:
        """Waits until a component is ready. Raises an error when it exits or does not respond in time."""
        end = time.monotonic() + seconds
        while True:
            # Check the process first: another process may listen on its address.
            if self.process(component.name) is None:
                raise ComponentError(
                    "lab-component-exited",
                    f"{component.name} exited while it was starting: {self._error_line(component.name)}",
                    f"Run `aks-flex-lab logs {component.name}`.",
                )
            if component.ready():
                return
            if time.monotonic() > end:
                raise ComponentError(
                    "lab-component-not-ready",
                    f"{component.name} did not respond at {component.address} within {seconds:.0f} s.",
                    f"Run `aks-flex-lab logs {component.name}`.",
                )
            time.sleep(0.05)

    def states(self) -> list[ComponentState]:
        """Returns the state of every component, also of those never started; empty when the lab does not exist."""
        if not self.layout.components.exists():
            return []
        of_sites = sorted(path.name for path in self.layout.components.glob(f"{METADATA_PREFIX}*"))
        optional = [name for name in OPTIONAL_COMPONENTS if self.directory(name).exists()]
        return [self.state(name) for name in (*COMPONENT_NAMES, *optional, *of_sites)]

    def state(self, name: str) -> ComponentState:
        record = self.directory(name) / "process.json"
        document = json.loads(record.read_text()) if record.exists() else {"address": "-"}
        process = self.process(name)
        return ComponentState(
            name,
            document["address"],
            process is not None,
            process.pid if process else None,
            () if process else self._last_lines(name, 5),
        )

    def _error_line(self, name: str) -> str:
        """Returns the last line of the log that looks like an error, or else the last line."""
        lines = self._last_lines(name, 20)
        return next((line for line in reversed(lines) if ERROR_LINE.search(line)), lines[-1])

    def _last_lines(self, name: str, count: int) -> tuple[str, ...]:
        return tuple(last_lines(self.log(name), count)) or ("no output",)


class NamespaceConnection(http.client.HTTPSConnection):
    """An HTTPS connection to a server in a network namespace."""

    def __init__(
        self,
        namespace: NetworkNamespace,
        address: str,
        port: int,
        name: str,
        trust: ssl.SSLContext,
        seconds: float = 60,  # a slow disk delays pushes
    ) -> None:
        super().__init__(name, port, timeout=seconds, context=trust)
        self._where = (namespace, address, port)
        self._trust = trust

    def connect(self) -> None:
        namespace, address, port = self._where
        plain: socket.socket = namespace.connect(address, port)
        plain.settimeout(self.timeout)  # the time limit of the connection is shorter
        try:
            self.sock = self._trust.wrap_socket(plain, server_hostname=self.host)
        except OSError:
            plain.close()
            raise


def client_tls_context(authority: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(authority))


def tcp_probe(namespace: NetworkNamespace, address: str, port: int) -> Callable[[], bool]:
    """Returns a probe that succeeds when the port accepts a connection."""

    def ask() -> bool:
        try:
            namespace.connect(address, port, 1).close()
        except OSError:
            return False
        return True

    return ask


def https_probe(
    namespace: NetworkNamespace, address: str, port: int, path: str, authority: Path | None
) -> Callable[[], bool]:
    """Returns a probe that succeeds when an HTTPS GET returns 200. Without a CA, the certificate is not verified."""

    def ask() -> bool:
        try:
            # The server may write the certificate of its CA when it starts.
            trust = client_tls_context(authority) if authority else ssl._create_unverified_context()  # noqa: S323 - own loopback
            with closing(NamespaceConnection(namespace, address, port, address, trust, PROBE_SECONDS)) as connection:
                connection.request("GET", path)
                return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False

    return ask
