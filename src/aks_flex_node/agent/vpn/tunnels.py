"""The running client: how it is, by its own word."""

from __future__ import annotations

import contextlib
import re
import socket
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aks_flex_node.agent.components.vpn import MANAGEMENT, NAME

if TYPE_CHECKING:
    from collections.abc import Callable

    from aks_flex_node.host.host import Host

CONNECTED = "CONNECTED"
SECONDS = 2.0
STATE = re.compile(r"^(\d+),([A-Z_]+),([^,]*),([^,]*),([^,]*)", re.MULTILINE)


@dataclass(frozen=True)
class Tunnel:
    """What the client says of itself."""

    state: str  # CONNECTED, WAIT, RECONNECTING …
    since: float  # unix time
    address: str = ""  # that the gateway gave us
    gateway: str = ""

    @property
    def up(self) -> bool:
        return self.state == CONNECTED


def look(path: str = MANAGEMENT) -> Tunnel | None:
    """Ask the client; None when none runs."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as line:
        line.settimeout(SECONDS)
        line.connect(path)
        line.sendall(b"state\n")
        told = b""
        while chunk := line.recv(4096):
            told += chunk
            if b"END" in told:
                break
        return parse(told.decode(errors="replace"))
    return None


def parse(text: str) -> Tunnel | None:
    """What the client's management interface says to `state`."""
    found = STATE.search(text.replace("\r", ""))
    return Tunnel(found[2], float(found[1]), found[4], found[5]) if found else None


@dataclass(frozen=True)
class Waiting:
    """How long to wait, and how to look."""

    look: Callable[[], Tunnel | None] = look
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic
    tick: float = 0.5

    def until(self, true: Callable[[], bool], seconds: float) -> bool:
        end = self.clock() + seconds
        while not true():
            if self.clock() > end:
                return False
            self.sleep(self.tick)
        return True

    def up(self, seconds: float) -> bool:
        def is_up() -> bool:
            found = self.look()
            return found is not None and found.up

        return self.until(is_up, seconds)


def words(host: Host) -> str:
    """What the client said since it was last started."""
    invocation = host.unit(NAME).invocation
    which = (f"_SYSTEMD_INVOCATION_ID={invocation}",) if invocation else ("-u", NAME)
    return host.ask("journalctl", *which, "-n", "100", "-o", "cat", "--no-pager").out
