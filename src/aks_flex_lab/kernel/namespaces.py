"""Creates, enters and removes network namespaces, and connects to addresses in them."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import threading
from dataclasses import dataclass
from pathlib import Path

from aks_flex_lab.errors import HostError
from aks_flex_lab.processes import run

NETNS_DIRECTORY = Path("/run/netns")
CLONE_NEWNET = 0x40000000


@dataclass(frozen=True)
class NetworkNamespace:
    name: str

    @property
    def path(self) -> Path:
        return NETNS_DIRECTORY / self.name

    @property
    def exists(self) -> bool:
        return self.path.exists()

    def make(self) -> None:
        """Creates the namespace, also if only its file exists, as after a reboot."""
        if self.exists and not is_namespace(self.path):
            self.path.unlink()
        if not self.exists:
            _ip("netns", "add", self.name)
        self.ip("link set lo up")

    def ip(self, *commands: str) -> None:
        """Runs `ip` commands in the namespace, until one fails."""
        if commands:
            _ip("-n", self.name, "-batch", "-", text="\n".join(commands) + "\n")

    def has_link(self, name: str) -> bool:
        return run("ip", "-n", self.name, "link", "show", name, check=False).ok

    def remove_link(self, name: str) -> None:
        if self.has_link(name):
            self.ip(f"link del {name}")

    def add_iptables_rule(self, table: str, chain: str, *rule: str) -> None:
        """Adds a firewall rule to the namespace unless it exists."""
        there = run(*self.command("iptables", "-w", "-t", table, "-C", chain, *rule), check=False)
        if there.ok:
            return
        done = run(*self.command("iptables", "-w", "-t", table, "-A", chain, *rule), check=False)
        if not done.ok:
            raise HostError(
                "kernel-feature-missing",
                f"This kernel does not support a firewall rule that the lab needs: {done.last_line}.",
                "Run `modprobe -a nf_nat iptable_nat nft_chain_nat xt_nat`, then retry.",
            )

    def command(self, *argv: str | Path) -> tuple[str, ...]:
        """Returns the command that runs `argv` in the namespace with the same process ID."""
        return ("nsenter", f"--net={self.path}", "--", *(str(word) for word in argv))

    def connect(self, host: str, port: int, seconds: float = 2) -> socket.socket:
        """Returns a socket of this namespace, connected to the address. Raises OSError as `socket` does."""
        return _connect_inside(self.path, host, port, seconds)

    def pids(self) -> list[int]:
        """Returns the processes in the namespace."""
        inode = self.path.stat().st_ino
        found = []
        for process in Path("/proc").iterdir():
            if process.name.isdigit():
                try:
                    if (process / "ns" / "net").stat().st_ino == inode:
                        found.append(int(process.name))
                except OSError:
                    continue
        return found

    def remove(self) -> None:
        if not self.exists:
            return
        if is_namespace(self.path):
            for pid in self.pids():
                if pid != os.getpid():
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
        _ip("netns", "del", self.name)


def namespaces_with_prefix(prefix: str) -> list[NetworkNamespace]:
    """Returns the namespaces whose names have a prefix."""
    if not NETNS_DIRECTORY.exists():
        return []
    return [NetworkNamespace(path.name) for path in sorted(NETNS_DIRECTORY.iterdir()) if path.name.startswith(prefix)]


def is_namespace(path: Path) -> bool:
    """Returns whether a file is a namespace, which means that it is on the kernel's nsfs."""
    return path.stat().st_dev != path.parent.stat().st_dev


def enter_namespace(path: Path) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    handle = os.open(path, os.O_RDONLY)
    try:
        if libc.setns(handle, CLONE_NEWNET) != 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code), str(path))
    finally:
        os.close(handle)


def _connect_inside(path: Path, host: str, port: int, seconds: float) -> socket.socket:
    made: list[socket.socket] = []
    failed: list[OSError] = []

    def visit() -> None:
        try:
            enter_namespace(path)
            made.append(socket.create_connection((host, port), seconds))
        except OSError as error:
            failed.append(error)

    thread = threading.Thread(target=visit)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return made[0]


def _ip(*argv: str, text: str | None = None) -> None:
    done = run("ip", *argv, check=False, input=text)
    if done.ok:
        return
    if "Operation not supported" in done.err or "Unknown device type" in done.err:
        raise HostError(
            "kernel-feature-missing",
            f"This kernel cannot create a network object that the lab needs: {done.err.splitlines()[0]}.",
            "Run `modprobe -a bridge veth br_netfilter`, then retry.",
        )
    raise HostError(
        "network-setup-failed",
        f"`ip {' '.join(argv)}` failed: {done.last_line}.",
        "Run `aks-flex-lab down`, then retry.",
    )
