"""One edge machine, seen from the host: its record, its processes, running commands in it, power and reboot."""

from __future__ import annotations

import json
import signal
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from aks_flex_lab import processes, snapshots
from aks_flex_lab.errors import ComponentError, LabError
from aks_flex_lab.files import last_line, write_atomically
from aks_flex_lab.kernel.cgroups import LabCgroups, cgroups_of_process, join_command
from aks_flex_lab.kernel.mounts import remove_tree
from aks_flex_lab.machines.base_system import BaseSystem, DebianRelease
from aks_flex_lab.machines.disk import MachineDisk
from aks_flex_lab.network import EdgeSite, LabNetwork

if TYPE_CHECKING:
    from aks_flex_lab.layout import LabLayout
    from aks_flex_lab.processes import CommandResult, ProcessHandle

ENVIRONMENT = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root USER=root LANG=C.UTF-8"
BOOT_SECONDS = 60
TIMED_OUT = 124  # how coreutils' timeout says so
SHARED_FOLDERS = "/opt/lent"
NSPAWN_DIRECTORY = Path("/run/systemd/nspawn")
RUNNER = (sys.executable, "-m", "aks_flex_lab.machines.runner")


@dataclass(frozen=True)
class MachineRecord:
    """What a machine is. Written before anything of it is made, so that it can always be found and removed."""

    name: str
    system: DebianRelease
    site: str
    number: int
    address: str
    lent: tuple[str, ...] = ()  # folders out here that it sees below LENT, and cannot write to


@dataclass(frozen=True)
class EdgeMachine:
    layout: LabLayout
    record: MachineRecord

    @property
    def name(self) -> str:
        return self.record.name

    @property
    def nspawn_name(self) -> str:
        """What systemd-nspawn knows it by, which no machine of another lab is."""
        return f"{self.layout.prefix}{self.name}"

    @property
    def directory(self) -> Path:
        return self.layout.machines / self.name

    @property
    def disk(self) -> MachineDisk:
        return MachineDisk(self.directory)

    @property
    def base(self) -> BaseSystem:
        return BaseSystem(self.record.system, self.layout.cache)

    @property
    def console(self) -> Path:
        return self.directory / "console.log"

    @property
    def reboot_marker(self) -> Path:
        """Tells the runner to boot the machine again, however it ended."""
        return self.directory / "again"

    @property
    def cgroups(self) -> LabCgroups:
        return LabCgroups(self.layout.name)

    @property
    def created_marker(self) -> Path:
        """Stands when the disk is whole. A machine without it was given up half-way, and never booted."""
        return self.directory / "made"

    @property
    def cgroup(self) -> str:
        return f"machine-{self.name}"

    @property
    def _runner_cgroup(self) -> str:
        return f"runner-{self.name}"

    def save(self) -> None:
        write_atomically(self.directory / "machine.json", json.dumps(asdict(self.record)))

    def runner(self) -> ProcessHandle | None:
        """The process that boots the machine, and boots it again."""
        record = self.directory / "runner.json"
        if not record.exists():
            return None
        process = processes.ProcessHandle(**json.loads(record.read_text()))
        return process if process.alive else None

    def init_pid(self) -> int | None:
        """The machine's own first process, by its id out here."""
        # A container inside has a first process, too, but one level further in.
        return next((pid for pid in self.cgroups.pids(self.cgroup) if _pids_inside(pid) == [1]), None)

    def start(self) -> None:
        """Boot the machine, and return when systemd has finished starting."""
        if self.runner() is None:
            # A runner that was never written down, because we were killed just then, would fight with the new one.
            self.cgroups.kill(self._runner_cgroup)
            self.cgroups.kill(self.cgroup)
            argv = ["unshare", "--mount", "--propagation", "private", *RUNNER, self.layout.name, self.name]
            process = processes.spawn(
                self.cgroups.join_command(self._runner_cgroup, argv),
                log=self.console,
                env={
                    "AKS_FLEX_LAB_HOME": str(self.layout.labs_directory),
                    "AKS_FLEX_LAB_CACHE": str(self.layout.cache),
                },
            )
            write_atomically(self.directory / "runner.json", json.dumps(asdict(process)))
        self.wait_booted()

    def wait_booted(self, seconds: float = BOOT_SECONDS, *, other_than: int | None = None) -> None:
        """Wait until it has started; after a reboot or a cut, until that is another boot than before."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            init = self.init_pid()
            if init and init != other_than and self._has_started():
                return
            if self.runner() is None:
                raise ComponentError(
                    "machine-exited",
                    f"Machine {self.name} ended while it was booting: {last_line(self.console)}",
                    f"Look at `aks-flex-lab logs {self.name}`.",
                )
            time.sleep(0.03)
        raise ComponentError(
            "machine-boot-failed",
            f"Machine {self.name} did not finish booting within {seconds:.0f} s.",
            f"Look at `aks-flex-lab logs {self.name}`.",
        )

    def _has_started(self) -> bool:
        try:
            state = self.run("systemctl", "is-system-running", check=False).out.strip()
        except (ComponentError, OSError):
            return False  # it went while we asked: it is still on its way down
        return state in {"running", "degraded"}

    def command_inside(self, *argv: str | Path, tty: bool = False) -> list[str]:
        """The command that runs `argv` in the machine, with the environment of a root login and nothing of ours."""
        init = self.init_pid()
        if init is None:
            raise ComponentError(
                "machine-not-running",
                f"Machine {self.name} is not running.",
                f"Start it with `aks-flex-lab machine start {self.name}`.",
            )
        terminal = " TERM=xterm-256color" if tty else ""
        enter = f"nsenter -t {init} -m -u -i -n -p -C -r -w env -i {ENVIRONMENT}{terminal}".split()
        return join_command(cgroups_of_process(init), [*enter, *(str(word) for word in argv)])

    def run(
        self,
        *argv: str | Path,
        check: bool = True,
        input: str | None = None,  # noqa: A002 - as in subprocess
        timeout: float = 120,
    ) -> CommandResult:
        """Run a command in the machine to its end, which comes at the time limit at the latest."""
        bound = ("timeout", "--kill-after=5", f"{timeout:g}")
        done = processes.run(*self.command_inside(*bound, *argv), check=False, input=input, timeout=timeout + 30)
        command = " ".join(str(word) for word in argv)
        if done.code == TIMED_OUT:
            raise LabError(
                "program-timeout",
                f"`{command}` did not end within {timeout:g} s in {self.name} and was stopped.",
                "Is the machine very busy? Try again.",
            )
        if check and not done.ok:
            raise LabError(
                "command-failed",
                f"`{command}` failed in {self.name}: {done.last_line}.",
                f"Look around with `aks-flex-lab machine shell {self.name}`.",
            )
        return done

    def snapshot(self) -> snapshots.Snapshot:
        """Everything that makes the machine what it is."""
        return snapshots.take(lambda script, arguments: self.run("python3", "-", *arguments, input=script).out)

    def reboot(self) -> None:
        """Ask the machine to restart itself."""
        if self.runner() is None:
            return self.start()  # nobody would boot it again
        before = self.init_pid()
        self.run("systemctl", "reboot", check=False)
        self.wait_booted(other_than=before)
        return None

    def power_cycle(self) -> None:
        """Power loss: everything in the machine ends at once, and it boots again on the same disk."""
        before = self.init_pid()
        if before is None or self.runner() is None:
            return self.start()
        self.reboot_marker.touch()
        # The death of its first process is the death of all, in one instant and without a word to anybody.
        processes.ProcessHandle.of(before).kill(signal.SIGKILL)
        self.wait_booted(other_than=before)
        return None

    def stop(self) -> None:
        """Turn it off, without asking it."""
        if runner := self.runner():
            runner.kill(signal.SIGKILL)
        for leaf in (self._runner_cgroup, self.cgroup):
            self.cgroups.kill(leaf)
            self.cgroups.remove(leaf)
        (self.directory / "runner.json").unlink(missing_ok=True)
        LabNetwork(self.layout).disconnect_machine(self.name)
        remove_nspawn_directories(self.nspawn_name)

    def site(self) -> EdgeSite:
        return LabNetwork(self.layout).site(self.record.site)


def remove_nspawn_directories(pattern: str) -> None:
    """systemd-nspawn makes directories for a machine, and does not dare to remove them where /run is a disk."""
    for directory in NSPAWN_DIRECTORY.glob(f"*/{pattern}"):
        remove_tree(directory)


def load_machine(layout: LabLayout, name: str) -> EdgeMachine | None:
    record = layout.machines / name / "machine.json"
    if not record.exists():
        return None
    fields = json.loads(record.read_text())
    kinds = {"system": DebianRelease(fields["system"]), "lent": tuple(fields.get("lent", ()))}
    return EdgeMachine(layout, MachineRecord(**{**fields, **kinds}))


def _pids_inside(pid: int) -> list[int]:
    """What a process is called in each namespace below ours, the outermost first."""
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("NSpid:"):
                return [int(word) for word in line.split()[2:]]
    except (FileNotFoundError, ProcessLookupError):
        return []
    return []
