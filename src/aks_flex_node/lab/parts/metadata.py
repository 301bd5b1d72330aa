"""Managed identities of machines: at a site where one has any, the router answers as Azure's metadata service.

A machine at a site without it is like any machine outside of Azure: nobody answers at that address.
"""

from __future__ import annotations

import ipaddress
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aks_flex_node.lab import network
from aks_flex_node.lab.entra.given import Given
from aks_flex_node.lab.parts.part import METADATA, Part, Supervisor
from aks_flex_node.lab.parts.probes import accepts

if TYPE_CHECKING:
    from pathlib import Path

    from aks_flex_node.lab.entra.directory import Principal
    from aks_flex_node.lab.layout import Layout
    from aks_flex_node.lab.machines.machine import Machine
    from aks_flex_node.lab.network import Site

ADDRESS = "169.254.169.254"


@dataclass(frozen=True)
class Metadata:
    layout: Layout
    state: Path  # of the lab's Azure

    @property
    def given(self) -> Given:
        return Given(self.state)

    def give(self, machine: Machine, *identities: Principal) -> None:
        """These are the identities of the machine from now on; without any it is no VM of Azure's any more."""
        self.given.set(machine.record.address, [each.object_id for each in identities])
        self.settle()

    def settle(self) -> None:
        """Have the service at the sites that need it, and at no other."""
        addresses = [ipaddress.ip_address(each) for each in self.given.addresses()]
        net = network.Network(self.layout)
        for site in net.sites():
            if any(each in ipaddress.ip_network(site.subnet) for each in addresses):
                self._start(net, site)
            else:
                self._stop(net, site)

    def part(self, net: network.Network, site: Site) -> Part:
        argv = (
            *(sys.executable, "-m", "aks_flex_node.lab.entra"),
            f"--listen={ADDRESS}:80",
            f"--state={self.state}",
            f"--login={network.LOGIN_URL}",
        )
        inside = net.of_site(site)
        return Part(f"{METADATA}{site.name}", argv, f"http://{ADDRESS}", accepts(inside, ADDRESS, 80), inside)

    def _start(self, net: network.Network, site: Site) -> None:
        net.of_site(site).ip(f"addr replace {ADDRESS}/32 dev lo")
        supervisor, part = Supervisor(self.layout), self.part(net, site)
        supervisor.start(part)
        supervisor.wait(part)

    def _stop(self, net: network.Network, site: Site) -> None:
        if process := Supervisor(self.layout).process(f"{METADATA}{site.name}"):
            process.stop()
            net.of_site(site).ip(f"addr del {ADDRESS}/32 dev lo")
