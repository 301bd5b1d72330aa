"""A part is one long-running program of the lab: how it starts, when it is ready, and how it is found again."""

from __future__ import annotations

import hashlib
import json
import re
import time
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from aks_flex_node.lab import processes
from aks_flex_node.lab.errors import PartError
from aks_flex_node.lab.files import last_lines, write_atomically
from aks_flex_node.lab.kernel.cgroups import Groups

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from aks_flex_node.lab.kernel.namespaces import Namespace
    from aks_flex_node.lab.layout import Layout
    from aks_flex_node.lab.processes import Process

# Every part of a lab that is up, in the order of their starts.
PART_NAMES = (
    *("etcd", "dns", "registry", "mirror", "toxiproxy"),
    *("azure", "kube-apiserver", "gateway", "kube-controller-manager", "kube-scheduler"),
    *("provider", "provider-gateway", "vpn"),
)
METADATA = "metadata-"  # and the name of a site: there is one where machines have identities of Azure
# Where names are looked up is a file of the whole machine; so the program gets a view of its own of it.
RESOLVING = ("unshare", "--mount", "sh", "-c", 'mount --bind "$0" /etc/resolv.conf && exec "$@"')
READY_SECONDS = 60
ERROR = re.compile(r"^[EF]\d{4} |error|fatal|panic|failed|cannot", re.IGNORECASE)


@dataclass(frozen=True)
class Part:
    name: str
    argv: tuple[str | Path, ...]
    address: str  # where it listens, for people
    ready: Callable[[], bool]
    namespace: Namespace | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[Path, str] = field(default_factory=dict)  # its configuration, written before it starts
    resolver: Path | None = None  # a resolv.conf of its own, in place of this machine's

    @property
    def key(self) -> str:
        """Changes when the part would be started in another way."""
        told = json.dumps(
            [
                [str(word) for word in self.argv],
                dict(self.env),
                {str(path): text for path, text in self.files.items()},
            ]
        )
        return hashlib.sha256(told.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class State:
    """How a part is doing."""

    name: str
    address: str
    up: bool
    pid: int | None
    memory: int
    since: float | None
    last_words: tuple[str, ...]  # of a part that should run and does not


@dataclass(frozen=True)
class Supervisor:
    """Starts, finds and stops the parts of one lab. It is no process of its own."""

    layout: Layout

    def room(self, name: str) -> Path:
        return self.layout.parts / name

    def log(self, name: str) -> Path:
        return self.room(name) / "log"

    def process(self, name: str) -> Process | None:
        record = self.room(name) / "process.json"
        if not record.exists():
            return None
        process = processes.Process(**json.loads(record.read_text())["process"])
        return process if process.alive else None

    def start(self, part: Part) -> None:
        """Start a part unless it runs already, just so. Returns at once; `wait` tells when it is ready."""
        record = self.room(part.name) / "process.json"
        running = self.process(part.name)
        if running and json.loads(record.read_text())["key"] == part.key:
            return
        if running:
            running.stop()
        groups = Groups(self.layout.name)
        leaf = f"part-{part.name}"
        groups.kill(leaf)  # what a lab that died may have started without writing it down
        for path, text in part.files.items():
            write_atomically(path, text, 0o600)
        self.room(part.name).mkdir(parents=True, exist_ok=True)
        inner = (*RESOLVING, part.resolver, *part.argv) if part.resolver else part.argv
        argv = part.namespace.command(*inner) if part.namespace else inner
        process = processes.spawn(groups.joining(leaf, argv), log=self.log(part.name), env=part.env)
        told = {"key": part.key, "address": part.address, "process": asdict(process)}
        write_atomically(record, json.dumps(told))

    def wait(self, part: Part, seconds: float = READY_SECONDS) -> None:
        """Wait until a part answers; one that ended, or never answers, is named with its own last words."""
        end = time.monotonic() + seconds
        while True:
            # First whether it lives: someone else may answer at its address.
            if self.process(part.name) is None:
                raise PartError(
                    "part-ended",
                    f"{part.name} ended while it was starting: {self._cause(part.name)}",
                    f"Read all of it with `aks-flex-lab logs {part.name}`.",
                )
            if part.ready():
                return
            if time.monotonic() > end:
                raise PartError(
                    "part-not-ready",
                    f"{part.name} did not answer at {part.address} within {seconds:.0f} s.",
                    f"Read what it said with `aks-flex-lab logs {part.name}`.",
                )
            time.sleep(0.05)

    def states(self) -> list[State]:
        """Every part that a lab has, also one that was never started; none when there is no lab."""
        if not self.layout.parts.exists():
            return []
        of_sites = sorted(path.name for path in self.layout.parts.glob(f"{METADATA}*"))
        return [self.state(name) for name in (*PART_NAMES, *of_sites)]

    def state(self, name: str) -> State:
        record = self.room(name) / "process.json"
        told = json.loads(record.read_text()) if record.exists() else {"address": "-"}
        process = self.process(name)
        pids = sorted(Groups(self.layout.name).pids(f"part-{name}"))
        return State(
            name,
            told["address"],
            process is not None,
            process.pid if process else None,
            processes.resident_bytes(pids),
            process.since if process else None,
            () if process else self._last_words(name, 5),
        )

    def _cause(self, name: str) -> str:
        """The line that says why: the last one that sounds like an error, else the last one."""
        lines = self._last_words(name, 20)
        return next((line for line in reversed(lines) if ERROR.search(line)), lines[-1])

    def _last_words(self, name: str, count: int) -> tuple[str, ...]:
        return tuple(last_lines(self.log(name), count)) or ("it said nothing",)
