"""One edge machine as seen from the host: record, processes, commands in it, power and reboot."""

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
    from collections.abc import Sequence

    from aks_flex_lab.layout import LabLayout
    from aks_flex_lab.processes import CommandResult, ProcessHandle

ENVIRONMENT = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root USER=root LANG=C.UTF-8"
BOOT_SECONDS = 180
TIMED_OUT = 124  # exit code of coreutils' timeout
SHARED_FOLDERS = "/opt/lent"
NSPAWN_DIRECTORY = Path("/run/systemd/nspawn")
RUNNER = (sys.executable, "-m", "aks_flex_lab.machines.runner")


@dataclass(frozen=True)
class MachineRecord:
    """The properties of a machine. Written before the machine is created, so that it can always be removed."""

    name: str
    system: DebianRelease
    site: str
    number: int
    address: str
    lent: tuple[str, ...] = ()  # directories of the host, mounted read-only below LENT


@dataclass(frozen=True)
class EdgeMachine:
    layout: LabLayout
    record: MachineRecord

    @property
    def name(self) -> str:
        return self.record.name

    @property
    def nspawn_name(self) -> str:
        """The name of the machine for systemd-nspawn, unique among all labs."""
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
        """A file that makes the runner boot the machine again after it stopped for any reason."""
        return self.directory / "again"

    @property
    def cgroups(self) -> LabCgroups:
        return LabCgroups(self.layout.name)

    @property
    def created_marker(self) -> Path:
        """A file that exists when the disk is complete. A machine without it is incomplete and never booted."""
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
        """The process that boots the machine, and reboots it."""
        record = self.directory / "runner.json"
        if not record.exists():
            return None
        process = processes.ProcessHandle(**json.loads(record.read_text()))
        return process if process.alive else None

    def init_pid(self) -> int | None:
        """The process ID of the machine's init on the host."""
        # The init of a container in the machine is one PID namespace further inside.
        return next((pid for pid in self.cgroups.pids(self.cgroup) if _pids_inside(pid) == [1]), None)

    def start(self) -> None:
        """Boots the machine, and returns when systemd has finished booting."""
        if self.runner() is None:
            # A killed command may have left a runner without a record, which would conflict with the new one.
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
        """Waits until the machine has booted; after a reboot or a power cut, until the boot ID has changed."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            init = self.init_pid()
            if init and init != other_than and self._has_started():
                return
            if self.runner() is None:
                raise ComponentError(
                    "machine-exited",
                    f"Machine {self.name} stopped while it was booting: {last_line(self.console)}",
                    f"Run `aks-flex-lab logs {self.name}`.",
                )
            time.sleep(0.03)
        raise ComponentError(
            "machine-boot-failed",
            f"Machine {self.name} did not finish booting within {seconds:.0f} s.",
            f"Run `aks-flex-lab logs {self.name}`.",
        )

    def _has_started(self) -> bool:
        try:
            state = self.run("systemctl", "is-system-running", check=False).out.strip()
        except (ComponentError, OSError):
            return False  # The process exited meanwhile: the machine is still shutting down.
        return state in {"running", "degraded"}

    def command_inside(self, *argv: str | Path, tty: bool = False) -> list[str]:
        """Returns the command that runs `argv` in the machine with the environment of a root login."""
        init = self.init_pid()
        if init is None:
            raise ComponentError(
                "machine-not-running",
                f"Machine {self.name} is not running.",
                f"Run `aks-flex-lab machine start {self.name}`.",
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
        """Runs a command in the machine, and stops it at the time limit."""
        bound = ("timeout", "--kill-after=5", f"{timeout:g}")
        done = processes.run(*self.command_inside(*bound, *argv), check=False, input=input, timeout=timeout + 30)
        command = " ".join(str(word) for word in argv)
        if done.code == TIMED_OUT:
            raise LabError(
                "program-timeout",
                f"`{command}` did not exit within {timeout:g} s in {self.name} and was stopped.",
                "Check the load of this host, then retry.",
            )
        if check and not done.ok:
            raise LabError(
                "command-failed",
                f"`{command}` failed in {self.name}: {done.last_line}.",
                f"Open a shell with `aks-flex-lab machine shell {self.name}`.",
            )
        return done

    def snapshot(self) -> snapshots.Snapshot:
        """Takes a snapshot of the machine's state."""

        def collect(script: str, arguments: Sequence[str]) -> str:
            done = self.run("python3", "-", *arguments, check=False, input=script)
            return done.out if done.ok else done.last_line

        return snapshots.take(collect)

    def reboot(self) -> None:
        """Reboots the machine with an orderly shutdown."""
        if self.runner() is None:
            return self.start()  # no runner would boot it again
        before = self.init_pid()
        self.run("systemctl", "reboot", check=False)
        self.wait_booted(other_than=before)
        return None

    def power_cycle(self) -> None:
        """Simulates a power loss: kills all processes of the machine, and boots it again with the same disk."""
        before = self.init_pid()
        if before is None or self.runner() is None:
            return self.start()
        self.reboot_marker.touch()
        # The kernel kills all processes of a PID namespace together with its init.
        processes.ProcessHandle.of(before).kill(signal.SIGKILL)
        self.wait_booted(other_than=before)
        return None

    def stop(self) -> None:
        """Turns the machine off without an orderly shutdown."""
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
    """Removes systemd-nspawn's directories of a machine, which nspawn keeps when /run is not a tmpfs."""
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
    """Returns the IDs of a process in each PID namespace, the outermost first."""
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("NSpid:"):
                return [int(word) for word in line.split()[2:]]
    except (FileNotFoundError, ProcessLookupError):
        return []
    return []
