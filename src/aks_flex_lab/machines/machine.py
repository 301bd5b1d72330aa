"""One edge machine as seen from the host: record, processes, commands in it, power and reboot.

`EdgeMachine` is what all machines have in common. Its kinds are containers (`container.py`) and virtual machines
(`virtual.py`).
"""

from __future__ import annotations

import json
import signal
import sys
import time
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from aks_flex_lab import processes, snapshots
from aks_flex_lab.errors import ComponentError, LabError
from aks_flex_lab.files import last_line, write_atomically
from aks_flex_lab.kernel.cgroups import LabCgroups
from aks_flex_lab.network import EdgeSite, LabNetwork

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from aks_flex_lab.architecture import Architecture
    from aks_flex_lab.layout import LabLayout
    from aks_flex_lab.machines.base_system import BaseSystem, DebianRelease
    from aks_flex_lab.pki import CertificateAuthority
    from aks_flex_lab.processes import CommandResult, ProcessHandle

ENVIRONMENT = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root USER=root LANG=C.UTF-8"
BOOT_SECONDS = 180
TIMED_OUT = 124  # exit code of coreutils' timeout
RUNNER = (sys.executable, "-m", "aks_flex_lab.machines.runner")


@dataclass(frozen=True)
class MachineRecord:
    """The properties of a machine. Written before the machine is created, so that it can always be removed."""

    name: str
    system: DebianRelease
    site: str
    number: int
    address: str
    lent: tuple[str, ...] = ()  # directories of the host, mounted read-only in a container
    arch: Architecture | None = None  # architecture of a virtual machine
    accelerator: str = ""  # how QEMU runs a virtual machine

    @property
    def document(self) -> dict[str, Any]:
        """The record as JSON has it: the architecture of a container is empty."""
        return {**asdict(self), "arch": self.arch or ""}


@dataclass(frozen=True)
class EdgeMachine(ABC):
    layout: LabLayout
    record: MachineRecord

    @property
    @abstractmethod
    def shares_kernel(self) -> bool:
        """Whether the machine uses the kernel of the host, so that other machines change its state."""

    @property
    @abstractmethod
    def timeout_factor(self) -> float:
        """Multiplies every time limit of the machine; 1 for a container."""

    @property
    @abstractmethod
    def base(self) -> BaseSystem:
        """The base system of the machine's disk."""

    @abstractmethod
    def main_pid(self) -> int | None:
        """The process of the host that is the running machine, another one after every boot; None when it is off."""

    @abstractmethod
    def command_inside(self, *argv: str | Path, tty: bool = False) -> list[str]:
        """Returns the command that runs `argv` in the machine with the environment of a root login."""

    @abstractmethod
    def copy_in(self, source: Path, target: str) -> None:
        """Copies a directory of the host with its contents into the running machine. Files are added and replaced."""

    @abstractmethod
    def create_disk(self) -> None:
        """Creates the machine's disk from its base system."""

    @abstractmethod
    def copy_disk(self, source: EdgeMachine) -> None:
        """Creates the machine's disk as a copy of the disk of another machine of the same kind, which may run."""

    @abstractmethod
    def write_identity(self, authority: CertificateAuthority) -> None:
        """Writes the machine's identity to its disk."""

    @abstractmethod
    def prepare(self) -> None:
        """Prepares the first boot. The machine's runner calls it in its own mount namespace."""

    @abstractmethod
    def boot(self) -> bool:
        """Runs the machine from power-on to power-off. Returns whether it requested a reboot. Its runner calls it."""

    @abstractmethod
    def cut_power(self) -> None:
        """Kills all processes of the machine immediately, so that it can finish nothing."""

    @abstractmethod
    def disconnect(self) -> None:
        """Removes what the machine had on the host, after its processes have ended."""

    @property
    def name(self) -> str:
        return self.record.name

    @property
    def directory(self) -> Path:
        return self.layout.machines / self.name

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
        write_atomically(self.directory / "machine.json", json.dumps(self.record.document))

    def runner(self) -> ProcessHandle | None:
        """The process that boots the machine, and reboots it."""
        record = self.directory / "runner.json"
        if not record.exists():
            return None
        process = processes.ProcessHandle(**json.loads(record.read_text()))
        return process if process.alive else None

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
        """Waits until the machine has booted; after a reboot or a power cut, until its main process is another."""
        seconds *= self.timeout_factor
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            main = self.main_pid()
            if main and main != other_than and self._has_started(end):
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

    def _has_started(self, end: float) -> bool:
        limit = max(end - time.monotonic(), 1) / self.timeout_factor
        try:
            state = self.run("systemctl", "is-system-running", check=False, timeout=limit).out.strip()
        except (LabError, OSError):
            return False  # The process exited meanwhile: the machine is still shutting down.
        return state in {"running", "degraded"}

    def require_running(self) -> int:
        """Returns the main process of the machine. Raises an error when the machine is off."""
        main = self.main_pid()
        if main is None:
            raise ComponentError(
                "machine-not-running",
                f"Machine {self.name} is not running.",
                f"Run `aks-flex-lab machine start {self.name}`.",
            )
        return main

    def run(
        self,
        *argv: str | Path,
        check: bool = True,
        input: str | None = None,  # noqa: A002 - as in subprocess
        timeout: float = 120,
    ) -> CommandResult:
        """Runs a command in the machine, and stops it at the time limit, which is longer in a slow machine."""
        timeout *= self.timeout_factor
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

    def differences(self, before: snapshots.Snapshot) -> list[snapshots.SnapshotDifference]:
        """Returns the differences from an earlier snapshot, without those that another machine may have caused."""
        found = snapshots.diff(before, self.snapshot())
        return [one for one in found if not (one.shared and self.shares_kernel)]

    def reboot(self) -> None:
        """Reboots the machine with an orderly shutdown."""
        if self.runner() is None:
            return self.start()  # no runner would boot it again
        before = self.main_pid()
        self.run("systemctl", "reboot", check=False)
        self.wait_booted(other_than=before)
        return None

    def power_cycle(self) -> None:
        """Simulates a power loss: kills all processes of the machine, and boots it again with the same disk."""
        before = self.main_pid()
        if before is None or self.runner() is None:
            return self.start()
        self.reboot_marker.touch()
        self.cut_power()
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
        self.disconnect()

    def site(self) -> EdgeSite:
        return LabNetwork(self.layout).site(self.record.site)
