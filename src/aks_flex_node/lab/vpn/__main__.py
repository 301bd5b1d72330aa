"""Keep the VPN server and the private network's name server as the lab's ARM has them, until a signal ends this."""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from aks_flex_node.lab import network
from aks_flex_node.lab.arm.network_resources import NetworkResources
from aks_flex_node.lab.files import write_atomically
from aks_flex_node.lab.processes import dies_with_us, spawn
from aks_flex_node.lab.vpn import profiles, server

if TYPE_CHECKING:
    from aks_flex_node.lab.processes import Process

TICK = 0.2


@dataclass
class Follower:
    state: Path  # of the lab's ARM
    room: Path
    certificate: Path
    key: Path
    _running: Process | None = None
    _as: server.Gateway | None = None
    _names: Process | None = None
    _ended: list[Process] = field(default_factory=list)

    def look(self) -> None:
        """One look at the gateway, and at what should run by it."""
        if self._names is None or not self._names.alive:
            self._names = self._spawn("dns", *name_server(self.room))
        wanted = self._wanted()
        if wanted == self._as and (self._running is None or self._running.alive):
            return
        self.stop()
        if wanted:
            write_atomically(self.room / "roots.pem", "".join(wanted.roots))
            text = server.configuration(
                wanted.pool, self.room, self.certificate, self.key, profiles.shared_key(self.state)
            )
            write_atomically(self.room / "server.conf", text, 0o600)
            self._running = self._spawn("openvpn", "openvpn", "--config", self.room / "server.conf")
        self._as = wanted

    def _wanted(self) -> server.Gateway | None:
        resources = NetworkResources(self.state)
        found = (resources.find(id_) for id_ in resources.all())
        return server.gateway(each.document for each in found if each and each.state == "Succeeded")

    def _spawn(self, name: str, *argv: str | Path) -> Process:
        return spawn([*dies_with_us(), *argv], log=self.room / f"{name}.log")

    def stop(self) -> None:
        if self._running:
            self._running.stop()
        self._running = None


def name_server(room: Path) -> list[str]:
    """Knows the API server by its private name, and nothing else; it answers in the private network alone."""
    return [
        "dnsmasq",
        "--keep-in-foreground",
        "--conf-file=/dev/null",
        "--user=root",
        "--log-facility=-",
        "--no-resolv",
        "--no-hosts",
        "--bind-interfaces",
        f"--listen-address={network.PRIVATE_DNS}",
        f"--pid-file={room / 'dns.pid'}",
        "--local=/#/",
        f"--host-record={network.PRIVATE_API_NAME},{network.PRIVATE_API}",
    ]


def main() -> None:
    words = argparse.ArgumentParser()
    for name in ("state", "room", "certificate", "key"):
        words.add_argument(f"--{name}", type=Path, required=True)
    follower = Follower(**vars(words.parse_args()))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        while True:
            follower.look()
            time.sleep(TICK)
    finally:
        with contextlib.suppress(OSError):
            follower.stop()


if __name__ == "__main__":
    main()
