"""Edge machines that are containers of systemd-nspawn: they start fast and share the kernel of the host."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from aks_flex_lab import processes
from aks_flex_lab.kernel.cgroups import cgroups_of_process, join_command
from aks_flex_lab.kernel.mounts import remove_tree
from aks_flex_lab.machines import disk
from aks_flex_lab.machines.base_system import INIT_PATH, BaseSystem
from aks_flex_lab.machines.disk import MachineDisk
from aks_flex_lab.machines.machine import ENVIRONMENT, EdgeMachine
from aks_flex_lab.network import LabNetwork
from aks_flex_lab.processes import run

if TYPE_CHECKING:
    from aks_flex_lab.pki import CertificateAuthority

SHARED_FOLDERS = "/opt/lent"
NSPAWN_DIRECTORY = Path("/run/systemd/nspawn")
RESTART_EXIT_CODE = 133  # exit code of systemd-nspawn when the system requests a reboot
DEVICES = ("/dev/kmsg", "/dev/net/tun", "/dev/fuse")
# System calls that containers in the machine need, and that systemd-nspawn denies by default.
SYSTEM_CALLS = "add_key keyctl bpf request_key"
NSPAWN_ENVIRONMENT = {
    "SYSTEMD_NSPAWN_API_VFS_WRITABLE": "1",
    "SYSTEMD_NSPAWN_LOCK": "0",  # nspawn does not remove its lock files, and only the runner uses the disk
}


@dataclass(frozen=True)
class ContainerMachine(EdgeMachine):
    @property
    def base(self) -> BaseSystem:
        return BaseSystem(self.record.system, self.layout.cache)

    @property
    def shares_kernel(self) -> bool:
        return True

    @property
    def timeout_factor(self) -> float:
        return 1.0

    @property
    def disk(self) -> MachineDisk:
        return MachineDisk(self.directory)

    @property
    def nspawn_name(self) -> str:
        """The name of the machine for systemd-nspawn, unique among all labs."""
        return f"{self.layout.prefix}{self.name}"

    def main_pid(self) -> int | None:
        """The process ID of the machine's init on the host."""
        # The init of a container in the machine is one PID namespace further inside.
        return next((pid for pid in self.cgroups.pids(self.cgroup) if _pids_inside(pid) == [1]), None)

    def command_inside(self, *argv: str | Path, tty: bool = False) -> list[str]:
        init = self.require_running()
        terminal = " TERM=xterm-256color" if tty else ""
        enter = f"nsenter -t {init} -m -u -i -n -p -C -r -w env -i {ENVIRONMENT}{terminal}".split()
        return join_command(cgroups_of_process(init), [*enter, *(str(word) for word in argv)])

    def copy_in(self, source: Path, target: str) -> None:
        """Copies the tree with `cp`, which is three times as fast as Python for the 3,000 files of the agent."""
        inside = Path(f"/proc/{self.require_running()}/root/{target.lstrip('/')}")
        inside.mkdir(parents=True, exist_ok=True)
        run("cp", "--archive", "--no-target-directory", source, inside, timeout=120)

    def create_disk(self) -> None:
        self.disk.create(self.base)

    def copy_disk(self, source: EdgeMachine) -> None:
        with source.cgroups.frozen(source.cgroup):
            self.disk.copy(MachineDisk(source.directory))

    def write_identity(self, authority: CertificateAuthority) -> None:
        disk.write_identity(self.disk.root, self.name, self.site(), authority)

    def prepare(self) -> None:
        self.disk.mount(self.base)

    def boot(self) -> bool:
        """Runs the machine. Every boot gets a new network namespace."""
        inside = LabNetwork(self.layout).connect_machine(self.name, self.site(), self.record.number)
        argv = [
            "systemd-nspawn",
            "--quiet",
            f"--directory={self.disk.root}",
            f"--machine={self.nspawn_name}",
            "--register=no",
            "--keep-unit",
            "--link-journal=no",
            "--resolv-conf=off",
            "--timezone=off",
            "--console=pipe",
            "--capability=all",
            f"--network-namespace-path={inside.path}",
            f"--system-call-filter={SYSTEM_CALLS}",
            *(f"--bind={device}" for device in DEVICES if Path(device).exists()),
            *(f"--bind-ro={folder}:{SHARED_FOLDERS}/{Path(folder).name}" for folder in self.record.lent),
            f"/{INIT_PATH}",
        ]
        joined = self.cgroups.join_command(self.cgroup, argv)
        return processes.run_attached(*joined, env=NSPAWN_ENVIRONMENT) == RESTART_EXIT_CODE

    def cut_power(self) -> None:
        """Kills the machine's init: the kernel kills all processes of a PID namespace together with it."""
        if init := self.main_pid():
            processes.ProcessHandle.of(init).kill(signal.SIGKILL)

    def disconnect(self) -> None:
        LabNetwork(self.layout).disconnect_machine(self.name)
        remove_nspawn_directories(self.nspawn_name)


def remove_nspawn_directories(pattern: str) -> None:
    """Removes systemd-nspawn's directories of a machine, which nspawn keeps when /run is not a tmpfs."""
    for directory in NSPAWN_DIRECTORY.glob(f"*/{pattern}"):
        remove_tree(directory)


def _pids_inside(pid: int) -> list[int]:
    """Returns the IDs of a process in each PID namespace, the outermost first."""
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("NSpid:"):
                return [int(word) for word in line.split()[2:]]
    except (FileNotFoundError, ProcessLookupError):
        return []
    return []
