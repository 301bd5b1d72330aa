"""A machine for self-update tests: real files, the real launcher, and agents that are scripts."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from aks_flex_node.agent import self_update
from aks_flex_node.agent.components.catalog import AGENT_COMPONENTS
from aks_flex_node.agent.components.service import COMPONENT, UNIT_NAME
from aks_flex_node.agent.event_log import EventLog
from aks_flex_node.agent.http.client import not_found_error
from aks_flex_node.agent.http.download_options import DownloadUrl
from aks_flex_node.agent.machine import UNIT_FILE
from aks_flex_node.agent.paths import CONFIG_VERSION_FILE
from aks_flex_node.agent.reconcile.engine import Engine
from aks_flex_node.agent.reconcile.ledger import Ledger
from aks_flex_node.agent.reconcile.program_stager import ProgramStager
from aks_flex_node.agent.self_update import SelfUpdate
from aks_flex_node.errors import MachineError
from aks_flex_node.host.actions import RestartUnit, StartUnit, WriteFile
from aks_flex_node.host.host import CommandResult
from aks_flex_node.host.processes import run
from aks_flex_node.host.real import RootedHost
from tests.unit.agent.builders import MACHINE, config_of, empty_host, install

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aks_flex_node.agent.job_records.job_result import JobResult
    from aks_flex_node.agent.reconcile.resources import ProgramTree
    from aks_flex_node.host.actions import Action
    from aks_flex_node.host.host import FileEntry, UnitState
    from aks_flex_node.settings.models import NodeConfig

GOOD, DEAD, MUTE = "exit 0", "echo 'no such module' >&2; exit 1", "exit 3"  # ready; not ready; never verified
KILLED_ONCE = '[ -f "$0.killed" ] && exit 0; touch "$0.killed"; kill -9 $$'
READY_AND_PROVEN, READY = 0, 3


def script(version: str, follows: str) -> bytes:
    return (
        f'#!/bin/sh\ncase "$1" in\nversion) echo {version};;\nconfig) exit 0;;\n'
        f'daemon) echo "$0"; {follows};;\nesac\n'
    ).encode()


class Cut(BaseException):
    """Simulates a power cut."""


@dataclass
class Bench:
    """A host with real files below one directory; other actions, including systemd's, are only recorded."""

    root: Path
    versions: dict[str, bytes] = field(default_factory=dict)  # versions at the publisher
    running: str = ""  # the program that runs and is ready
    journal: list[str] = field(default_factory=list)
    cut_at: int = -1  # number of actions before the power cut
    cut_after: bool = False  # whether the action at the power cut is completed

    live = True

    def __post_init__(self) -> None:
        self.real, self.notes = RootedHost(Path("/")), empty_host()
        home = self.root / "home" / "aks-flex-node"
        for folder in ("home", "opt", "data"):
            (self.root / folder).mkdir()
        home.write_bytes(script("0.1.0", GOOD))
        home.chmod(0o755)
        self.home = str(home)
        self.set_configuration("7")

    def set_configuration(self, version: str) -> None:
        self.notes.apply(WriteFile(CONFIG_VERSION_FILE, f"{version}\n".encode()))

    def _at(self, path: str) -> RootedHost:
        return self.real if path.startswith(str(self.root)) else self.notes  # type: ignore[return-value]

    def read(self, path: str) -> bytes | None:
        return self._at(path).read(path)

    def digest(self, path: str) -> str:
        return self._at(path).digest(path)

    def stat(self, path: str) -> FileEntry | None:
        entry = self._at(path).stat(path)
        return replace(entry, uid=0, gid=0) if entry else None

    def list_dir(self, path: str) -> tuple[str, ...]:
        return self._at(path).list_dir(path)

    def query(self, *argv: str, seconds: float = 10.0) -> CommandResult:
        if argv[0] == "journalctl":
            return CommandResult(0, "\n".join(self.journal))
        return run(argv, seconds=seconds)

    def unit(self, name: str) -> UnitState:
        return self.notes.unit(name)

    def apply(self, action: Action) -> None:
        self.cut_at -= 1
        if self.cut_at == -1 and not self.cut_after:
            raise Cut
        if isinstance(action, StartUnit | RestartUnit) and action.name == UNIT_NAME:
            self.notes.apply(action)
            self.start()
        elif hasattr(action, "path"):
            self._at(action.path).apply(action)
        else:
            self.notes.apply(action)
        if self.cut_at == -1:
            raise Cut

    def start(self) -> None:
        """Starts the agent once, as its unit specifies."""
        lines = re.findall(r"(?m)^(ExecStart(?:Pre)?)=[-+]*(.*)$", (self.read(UNIT_FILE) or b"").decode())
        self.running = ""
        for _, words in lines:
            answer = run(words.split(), seconds=30)
        program = answer.out.strip()
        self.journal += ["Starting the agent...", *answer.err.splitlines()]
        if answer.code not in {READY_AND_PROVEN, READY}:
            raise MachineError("action-failed", f"Could not start {UNIT_NAME}.")
        self.running = program
        if answer.code == READY_AND_PROVEN:
            package = program.replace("/bin/aks-flex-node", "/lib/aks_flex_node")
            self_update.confirm_trial(self, self.config, package)

    def boot(self) -> None:
        """Simulates systemd: starts an enabled unit, and restarts it when it fails or its watchdog expires."""
        self.cut_at = -1
        for _ in range(6):
            if self.unit(UNIT_NAME).enabled and (not self.running or self_update.read_trial(self, self.config)):
                with suppress(MachineError):
                    self.start()

    def settings(self, version: str, more: dict[str, object] | None = None) -> NodeConfig:
        """Sets the current configuration, with this agent version and more settings."""
        self.config = config_of(
            {
                "continuousMonitoring": True,
                "paths.installDir": f"{self.root}/opt/flex",
                "paths.dataDir": f"{self.root}/data/flex",
                **({"agent.version": version} if version else {}),
                **(more or {}),
            }
        )
        return self.config

    def engine(self) -> Engine:
        paths, machine = self.config.paths, replace(MACHINE, program=self.home)
        places = (f"{paths.data_dir}/ledger.json", f"{paths.install_dir}/ledger.json")
        engine = Engine(self, self.config, machine, Ledger(self, places), EventLog(), sync=lambda: None)
        engine.stager = Publisher(self)
        return engine

    def install(self) -> None:
        """Installs the existing agent as a service."""
        self.settings("")
        engine = self.engine()
        for component in AGENT_COMPONENTS:
            engine.apply(component)

    def renew(self, sleep: Callable[[float], None] | None = None) -> JobResult:
        ticks, engine = iter(range(10_000)), self.engine()
        engine.kept_stopped = frozenset((UNIT_NAME,))
        pause = sleep or self.restart_if_failed
        return SelfUpdate(engine, clock=lambda: float(next(ticks) * 10), sleep=pause).run()

    def restart_if_failed(self, _seconds: float) -> None:
        """Simulates systemd while the update waits: starts a failed unit again."""
        if not self.running:
            with suppress(MachineError):
                self.start()

    def repair(self) -> None:
        """Repairs the unit, as the agent does on drift."""
        engine = self.engine()
        with suppress(MachineError):
            for component in AGENT_COMPONENTS:
                engine.apply(component)

    @property
    def as_wanted(self) -> bool:
        return not self.engine().plan(COMPONENT).actions


@dataclass
class Publisher(ProgramStager):
    bench: Bench

    def prepare(self, programs: Sequence[ProgramTree]) -> None: ...

    def finish(self, program: ProgramTree, seconds: float) -> None:
        assert seconds > 0
        if program.version not in self.bench.versions:
            url = f"https://releases.example/v{program.version}/agent.tar.gz?sig=secret"
            raise not_found_error(DownloadUrl(url, url), 404)
        install(self.bench, program, {"bin/aks-flex-node": self.bench.versions[program.version]})  # type: ignore[arg-type]

    def close(self) -> None: ...
