"""Through a tunnel that is up: the API server's name means its private address, and somebody answers there."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from aks_flex_node.agent.components.vpn import HOSTS, vpn_dir, without_managed_lines
from aks_flex_node.agent.vpn import names, networks
from aks_flex_node.agent.vpn.overlaps import Network
from aks_flex_node.errors import ClusterError
from aks_flex_node.host.actions import EditFile

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aks_flex_node.agent.config.models import NodeConfig
    from aks_flex_node.agent.vpn.networks import Place
    from aks_flex_node.agent.vpn.worlds import World
    from aks_flex_node.azure.operations import Sender
    from aks_flex_node.host.host import Host

ANSWER_SECONDS = 60.0
NAME_SECONDS = 10.0


@dataclass(frozen=True)
class Reaching:
    host: Host
    config: NodeConfig
    world: World
    place: Place

    def name(self, sender: Sender, servers: Sequence[str]) -> None:
        """Let the API server's name mean its private address, where nothing else on this machine does that."""
        name, _ = networks.api_server(self.config, self.place.cluster)
        if names.is_address(name) or self.host.look(f"{vpn_dir(self.config)}/up"):
            return self._write(
                without_managed_lines
            )  # a line of an earlier run would be believed before anybody is asked
        address = self._asked(name, servers) or networks.zone_address(sender, self.config, self.place.cluster, name)
        if not address:
            return None  # what was found before may still be true
        # An address that is not behind the tunnel is a public one, and found without us.
        if any(one.network.overlaps(Network(address)) for one in self.place.beyond):
            return self._write(lambda hosts: names.with_name(hosts, name, address))
        return self._write(without_managed_lines)

    def _write(self, edit: Callable[[bytes], bytes]) -> None:
        hosts, entry = self.host.read(HOSTS) or b"", self.host.look(HOSTS)
        content = edit(hosts)
        if content != hosts:
            self.host.do(EditFile(HOSTS, content, entry.mode if entry else 0o644))

    def _asked(self, name: str, servers: Sequence[str]) -> str:
        """By the name servers behind the tunnel, which may take a moment to be reached."""
        found: list[str] = []

        def ask() -> bool:
            found.extend(filter(None, (self.world.ask(server, name) for server in servers)))
            return bool(found) or not servers

        self.world.waiting.until(ask, NAME_SECONDS)
        return found[0] if found else ""

    def prove(self) -> None:
        name, port = networks.api_server(self.config, self.place.cluster)
        if name and not self.world.waiting.until(partial(self.world.reaches, name, port), ANSWER_SECONDS):
            raise ClusterError(
                "vpn-api-server-silent",
                f"The tunnel is up, and {name}:{port} does not answer through it.",
                "Check by `getent hosts` that the name has its private address here (else set azure.vpn.dnsServers), "
                "and that no network security group in Azure stands between the VPN and the API server.",
                again=True,
            )
