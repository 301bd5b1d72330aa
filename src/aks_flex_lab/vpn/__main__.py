"""Reconciles the OpenVPN server and the private network's DNS server with the gateway in ARM until a signal."""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from aks_flex_lab import network
from aks_flex_lab.arm import openvpn
from aks_flex_lab.arm.network_resources import NetworkResources
from aks_flex_lab.files import write_atomically
from aks_flex_lab.processes import parent_death_wrapper, spawn

if TYPE_CHECKING:
    from aks_flex_lab.processes import ProcessHandle

INTERVAL_SECONDS = 0.2


@dataclass
class GatewayController:
    state: Path  # state directory of the lab's ARM
    directory: Path
    certificate: Path
    key: Path
    _running: ProcessHandle | None = None
    _as: openvpn.GatewaySpec | None = None
    _names: ProcessHandle | None = None
    _ended: list[ProcessHandle] = field(default_factory=list)

    def reconcile(self) -> None:
        """Reads the gateway once, and starts or stops the servers accordingly."""
        if self._names is None or not self._names.alive:
            self._names = self._spawn("dns", *dnsmasq_command(self.directory))
        resources = NetworkResources(self.state)
        found = (resources.find(id_) for id_ in resources.all())
        desired = openvpn.find_gateway(each.document for each in found if each and each.state == "Succeeded")
        if desired == self._as and (self._running is None or self._running.alive):
            return
        self.stop()
        if desired:
            write_atomically(self.directory / "roots.pem", "".join(desired.roots))
            text = openvpn.server_config(
                desired.pool, self.directory, self.certificate, self.key, openvpn.shared_key_file(self.state)
            )
            write_atomically(self.directory / "server.conf", text, 0o600)
            self._running = self._spawn("openvpn", "openvpn", "--config", self.directory / "server.conf")
        self._as = desired

    def _spawn(self, name: str, *argv: str | Path) -> ProcessHandle:
        return spawn([*parent_death_wrapper(), *argv], log=self.directory / f"{name}.log")

    def stop(self) -> None:
        if self._running:
            self._running.stop()
        self._running = None


def dnsmasq_command(directory: Path) -> list[str]:
    """Returns the command of the private network's DNS server, which resolves only the API server's private name."""
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
        f"--pid-file={directory / 'dns.pid'}",
        "--local=/#/",
        f"--host-record={network.PRIVATE_API_NAME},{network.PRIVATE_API}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("state", "directory", "certificate", "key"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    controller = GatewayController(**vars(parser.parse_args()))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        while True:
            controller.reconcile()
            time.sleep(INTERVAL_SECONDS)
    finally:
        with contextlib.suppress(OSError):
            controller.stop()


if __name__ == "__main__":
    main()
