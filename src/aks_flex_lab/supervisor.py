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


# Every part of a lab that is up, in the order of their starts.
COMPONENT_NAMES = (
    *("etcd", "dns", "registry", "mirror", "toxiproxy"),
    *("azure", "kube-apiserver", "gateway", "kube-controller-manager", "kube-scheduler"),
    *("provider", "provider-gateway", "vpn"),
)
METADATA_PREFIX = "metadata-"  # and the name of a site: there is one where machines have identities of Azure
# Where names are looked up is a file of the whole machine; so the program gets a view of its own of it.
RESOLV_CONF_WRAPPER = ("unshare", "--mount", "sh", "-c", 'mount --bind "$0" /etc/resolv.conf && exec "$@"')
READY_SECONDS = 60
ERROR_LINE = re.compile(r"^[EF]\d{4} |error|fatal|panic|failed|cannot", re.IGNORECASE)


@dataclass(frozen=True)
class LabComponent:
    name: str
    argv: tuple[str | Path, ...]
    address: str  # where it listens, for people
    ready: Callable[[], bool]
    namespace: NetworkNamespace | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[Path, str] = field(default_factory=dict)  # its configuration, written before it starts
    resolver: Path | None = None  # a resolv.conf of its own, in place of this machine's

    @property
    def key(self) -> str:
        """Changes when the part would be started in another way."""
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
    """How a part is doing."""

    name: str
    address: str
    up: bool
    pid: int | None
    memory: int
    since: float | None
    last_lines: tuple[str, ...]  # of a part that should run and does not


@dataclass(frozen=True)
class ComponentSupervisor:
    """Starts, finds and stops the parts of one lab. It is no process of its own."""

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

    def start(self, part: LabComponent) -> None:
        """Start a part unless it runs already, just so. Returns at once; `wait` tells when it is ready."""
        record = self.directory(part.name) / "process.json"
        running = self.process(part.name)
        if running and json.loads(record.read_text())["key"] == part.key:
            return
        if running:
            running.stop()
        groups = LabCgroups(self.layout.name)
        leaf = f"part-{part.name}"
        groups.kill(leaf)  # what a lab that died may have started without writing it down
        for path, text in part.files.items():
            write_atomically(path, text, 0o600)
        self.directory(part.name).mkdir(parents=True, exist_ok=True)
        inner = (*RESOLV_CONF_WRAPPER, part.resolver, *part.argv) if part.resolver else part.argv
        argv = part.namespace.command(*inner) if part.namespace else inner
        process = processes.spawn(groups.join_command(leaf, argv), log=self.log(part.name), env=part.env)
        record_document = {"key": part.key, "address": part.address, "process": asdict(process)}
        write_atomically(record, json.dumps(record_document))

    def wait(self, part: LabComponent, seconds: float = READY_SECONDS) -> None:
        """Wait until a part answers; one that ended, or never answers, is named with its own last words."""
        end = time.monotonic() + seconds
        while True:
            # First whether it lives: someone else may answer at its address.
            if self.process(part.name) is None:
                raise ComponentError(
                    "lab-component-exited",
                    f"{part.name} ended while it was starting: {self._error_line(part.name)}",
                    f"Read all of it with `aks-flex-lab logs {part.name}`.",
                )
            if part.ready():
                return
            if time.monotonic() > end:
                raise ComponentError(
                    "lab-component-not-ready",
                    f"{part.name} did not answer at {part.address} within {seconds:.0f} s.",
                    f"Read what it said with `aks-flex-lab logs {part.name}`.",
                )
            time.sleep(0.05)

    def states(self) -> list[ComponentState]:
        """Every part that a lab has, also one that was never started; none when there is no lab."""
        if not self.layout.components.exists():
            return []
        of_sites = sorted(path.name for path in self.layout.components.glob(f"{METADATA_PREFIX}*"))
        return [self.state(name) for name in (*COMPONENT_NAMES, *of_sites)]

    def state(self, name: str) -> ComponentState:
        record = self.directory(name) / "process.json"
        document = json.loads(record.read_text()) if record.exists() else {"address": "-"}
        process = self.process(name)
        pids = sorted(LabCgroups(self.layout.name).pids(f"part-{name}"))
        return ComponentState(
            name,
            document["address"],
            process is not None,
            process.pid if process else None,
            processes.resident_bytes(pids),
            process.since if process else None,
            () if process else self._last_lines(name, 5),
        )

    def _error_line(self, name: str) -> str:
        """The line that says why: the last one that sounds like an error, else the last one."""
        lines = self._last_lines(name, 20)
        return next((line for line in reversed(lines) if ERROR_LINE.search(line)), lines[-1])

    def _last_lines(self, name: str, count: int) -> tuple[str, ...]:
        return tuple(last_lines(self.log(name), count)) or ("it said nothing",)


class NamespaceConnection(http.client.HTTPSConnection):
    """HTTPS to a server inside a namespace."""

    def __init__(
        self, namespace: NetworkNamespace, address: str, port: int, name: str, trust: ssl.SSLContext
    ) -> None:
        super().__init__(name, port, timeout=10, context=trust)
        self._where = (namespace, address, port)
        self._trust = trust

    def connect(self) -> None:
        namespace, address, port = self._where
        plain: socket.socket = namespace.connect(address, port)
        try:
            self.sock = self._trust.wrap_socket(plain, server_hostname=self.host)
        except OSError:
            plain.close()
            raise


def client_tls_context(authority: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(authority))


def tcp_probe(namespace: NetworkNamespace, address: str, port: int) -> Callable[[], bool]:
    """Whether something listens."""

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
    """Whether a GET over TLS is answered with 200. Without an authority the certificate is not looked at."""

    def ask() -> bool:
        trust = client_tls_context(authority) if authority else ssl._create_unverified_context()  # noqa: S323 - own loopback
        with closing(NamespaceConnection(namespace, address, port, address, trust)) as connection:
            try:
                connection.request("GET", path)
                return connection.getresponse().status == 200
            except (OSError, http.client.HTTPException):
                return False

    return ask
