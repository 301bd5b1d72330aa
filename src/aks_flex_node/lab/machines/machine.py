"""One edge machine, seen from outside: its record, its processes, and what a person can do with it."""

from __future__ import annotations

import json
import signal
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from aks_flex_node.lab import processes, snapshots
from aks_flex_node.lab.errors import LabError, PartError
from aks_flex_node.lab.files import last_line, write_atomically
from aks_flex_node.lab.kernel.cgroups import Groups, groups_of, joining
from aks_flex_node.lab.kernel.mounts import remove_tree
from aks_flex_node.lab.machines.bases import Base, System
from aks_flex_node.lab.machines.disks import Disk
from aks_flex_node.lab.network import Network, Site

if TYPE_CHECKING:
    from aks_flex_node.lab.layout import Layout
    from aks_flex_node.lab.processes import Process, Result

ENVIRONMENT = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root USER=root LANG=C.UTF-8"
BOOT_SECONDS = 60
TIMED_OUT = 124  # how coreutils' timeout says so
LENT = "/opt/lent"
TRACES = Path("/run/systemd/nspawn")
RUNNER = (sys.executable, "-m", "aks_flex_node.lab.machines.runner")


@dataclass(frozen=True)
class Record:
    """What a machine is. Written before anything of it is made, so that it can always be found and removed."""

    name: str
    system: System
    site: str
    number: int
    address: str
    lent: tuple[str, ...] = ()  # folders out here that it sees below LENT, and cannot write to


@dataclass(frozen=True)
class Machine:
    layout: Layout
    record: Record

    @property
    def name(self) -> str:
        return self.record.name

    @property
    def alias(self) -> str:
        """What systemd-nspawn knows it by, which no machine of another lab is."""
        return f"{self.layout.prefix}{self.name}"

    @property
    def room(self) -> Path:
        return self.layout.machines / self.name

    @property
    def disk(self) -> Disk:
        return Disk(self.room)

    @property
    def base(self) -> Base:
        return Base(self.record.system, self.layout.cache)

    @property
    def console(self) -> Path:
        return self.room / "console.log"

    @property
    def again(self) -> Path:
        """Tells the runner to boot the machine again, however it ended."""
        return self.room / "again"

    @property
    def groups(self) -> Groups:
        return Groups(self.layout.name)

    @property
    def made(self) -> Path:
        """Stands when the disk is whole. A machine without it was given up half-way, and never booted."""
        return self.room / "made"

    @property
    def leaf(self) -> str:
        return f"machine-{self.name}"

    @property
    def _runner_leaf(self) -> str:
        return f"runner-{self.name}"

    def save(self) -> None:
        write_atomically(self.room / "machine.json", json.dumps(asdict(self.record)))

    def runner(self) -> Process | None:
        """The process that boots the machine, and boots it again."""
        record = self.room / "runner.json"
        if not record.exists():
            return None
        process = processes.Process(**json.loads(record.read_text()))
        return process if process.alive else None

    def init(self) -> int | None:
        """The machine's own first process, by its id out here."""
        # A container inside has a first process, too, but one level further in.
        return next((pid for pid in self.groups.pids(self.leaf) if _pids_inside(pid) == [1]), None)

    def start(self) -> None:
        """Boot the machine, and return when systemd has finished starting."""
        if self.runner() is None:
            # A runner that was never written down, because we were killed just then, would fight with the new one.
            self.groups.kill(self._runner_leaf)
            self.groups.kill(self.leaf)
            argv = ["unshare", "--mount", "--propagation", "private", *RUNNER, self.layout.name, self.name]
            process = processes.spawn(
                self.groups.joining(self._runner_leaf, argv),
                log=self.console,
                env={"AKS_FLEX_LAB_HOME": str(self.layout.homes), "AKS_FLEX_LAB_CACHE": str(self.layout.cache)},
            )
            write_atomically(self.room / "runner.json", json.dumps(asdict(process)))
        self.wait_booted()

    def wait_booted(self, seconds: float = BOOT_SECONDS, *, other_than: int | None = None) -> None:
        """Wait until it has started; after a reboot or a cut, until that is another boot than before."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            init = self.init()
            if init and init != other_than and self._has_started():
                return
            if self.runner() is None:
                raise PartError(
                    "machine-ended",
                    f"Machine {self.name} ended while it was booting: {last_line(self.console)}",
                    f"Look at `aks-flex-lab logs {self.name}`.",
                )
            time.sleep(0.03)
        raise PartError(
            "machine-not-booted",
            f"Machine {self.name} did not finish booting within {seconds:.0f} s.",
            f"Look at `aks-flex-lab logs {self.name}`.",
        )

    def _has_started(self) -> bool:
        try:
            state = self.run("systemctl", "is-system-running", check=False).out.strip()
        except (PartError, OSError):
            return False  # it went while we asked: it is still on its way down
        return state in {"running", "degraded"}

    def inside(self, *argv: str | Path, tty: bool = False) -> list[str]:
        """The command that runs `argv` in the machine, with the environment of a root login and nothing of ours."""
        init = self.init()
        if init is None:
            raise PartError(
                "machine-off",
                f"Machine {self.name} is not running.",
                f"Start it with `aks-flex-lab machine start {self.name}`.",
            )
        terminal = " TERM=xterm-256color" if tty else ""
        enter = f"nsenter -t {init} -m -u -i -n -p -C -r -w env -i {ENVIRONMENT}{terminal}".split()
        return joining(groups_of(init), [*enter, *(str(word) for word in argv)])

    def run(self, *argv: str | Path, check: bool = True, input: str | None = None, timeout: float = 120) -> Result:  # noqa: A002
        """Run a command in the machine to its end, which comes at the time limit at the latest."""
        bound = ("timeout", "--kill-after=5", f"{timeout:g}")
        done = processes.run(*self.inside(*bound, *argv), check=False, input=input, timeout=timeout + 30)
        words = " ".join(str(word) for word in argv)
        if done.code == TIMED_OUT:
            raise LabError(
                "command-too-slow",
                f"`{words}` did not end within {timeout:g} s in {self.name} and was stopped.",
                "Is the machine very busy? Try again.",
            )
        if check and not done.ok:
            raise LabError(
                "command-failed",
                f"`{words}` failed in {self.name}: {done.last_words}.",
                f"Look around with `aks-flex-lab machine shell {self.name}`.",
            )
        return done

    def snapshot(self) -> snapshots.Snapshot:
        """Everything that makes the machine what it is."""
        return snapshots.take(lambda script, words: self.run("python3", "-", *words, input=script).out)

    def reboot(self) -> None:
        """Ask the machine to restart itself."""
        if self.runner() is None:
            return self.start()  # nobody would boot it again
        before = self.init()
        self.run("systemctl", "reboot", check=False)
        self.wait_booted(other_than=before)
        return None

    def cut(self) -> None:
        """Power loss: everything in the machine ends at once, and it boots again on the same disk."""
        before = self.init()
        if before is None or self.runner() is None:
            return self.start()
        self.again.touch()
        # The death of its first process is the death of all, in one instant and without a word to anybody.
        processes.Process.of(before).kill(signal.SIGKILL)
        self.wait_booted(other_than=before)
        return None

    def stop(self) -> None:
        """Turn it off, without asking it."""
        if runner := self.runner():
            runner.kill(signal.SIGKILL)
        for leaf in (self._runner_leaf, self.leaf):
            self.groups.kill(leaf)
            self.groups.remove(leaf)
        (self.room / "runner.json").unlink(missing_ok=True)
        Network(self.layout).unplug(self.name)
        clear_traces(self.alias)

    def site(self) -> Site:
        return Network(self.layout).site(self.record.site)


def clear_traces(pattern: str) -> None:
    """systemd-nspawn makes directories for a machine, and does not dare to remove them where /run is a disk."""
    for trace in TRACES.glob(f"*/{pattern}"):
        remove_tree(trace)


def load(layout: Layout, name: str) -> Machine | None:
    record = layout.machines / name / "machine.json"
    if not record.exists():
        return None
    fields = json.loads(record.read_text())
    kinds = {"system": System(fields["system"]), "lent": tuple(fields.get("lent", ()))}
    return Machine(layout, Record(**{**fields, **kinds}))


def _pids_inside(pid: int) -> list[int]:
    """What a process is called in each namespace below ours, the outermost first."""
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("NSpid:"):
                return [int(word) for word in line.split()[2:]]
    except (FileNotFoundError, ProcessLookupError):
        return []
    return []
