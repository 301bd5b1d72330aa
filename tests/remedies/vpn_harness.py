"""A machine whose VPN client behaves like OpenVPN: it connects only if the world around it allows that."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
import typer.main

from aks_flex_node.agent.cli import app as agent_commands
from aks_flex_node.agent.components.vpn import NAME, client_file
from aks_flex_node.agent.vpn.gateway_spec import root_certificates
from aks_flex_node.agent.vpn.openvpn import TunnelState
from aks_flex_node.errors import FlexError
from aks_flex_node.host.host import CommandResult
from tests.hosts.recorded import RecordedHost
from tests.unit.agent.vpn.fakes import GATEWAY
from tests.unit.agent.vpn.harness import FILES, Site

if TYPE_CHECKING:
    from collections.abc import Sequence

UP = TunnelState("CONNECTED", 1.0, "192.168.100.2")
JOURNAL = ("journalctl", "-u", NAME, "-n", "100", "-o", "cat", "--no-pager")


def parse(program: typer.Typer, argv: Sequence[str]) -> dict[str, Any]:
    """Parses a command line as the program does; returns the parameters of the command."""
    command: Any = typer.main.get_command(program)
    words = list(argv[1:])
    while subcommands := getattr(command, "commands", None):
        command = subcommands[words.pop(0)]
    with command.make_context(argv[0], words) as context:
        return dict(context.params)


def failure(run: Any, *words: Any, **named: Any) -> FlexError:
    """Returns the error with which a call fails."""
    with pytest.raises(FlexError) as caught:
        run(*words, **named)
    return caught.value


@dataclass
class World:
    """What OpenVPN finds around it."""

    firewall_open: bool = True
    tun_loaded: bool = True
    clock_right: bool = True
    answers: dict[tuple[str, ...], CommandResult] = field(default_factory=dict)


class TunnelSite(Site):
    """A machine with a VPN client that logs why it does not connect."""

    def __init__(self, **settings: object) -> None:
        super().__init__(**settings)
        self.world = World()
        self.host = LoggingHost(self)
        self.changes["read_tunnel"] = lambda: None if self.problem else UP

    @property
    def problem(self) -> str:
        """The last line of OpenVPN's log; empty if the tunnel is up."""
        text = (self.host.read(client_file(self.config)) or b"").decode()
        certificate = re.search(r"^cert .*/(\S+)\.pem$", text, re.MULTILINE)
        problems = {
            "OpenVPN is not started": not text,
            "ERROR: Cannot open TUN/TAP dev /dev/net/tun: No such device": not self.world.tun_loaded,
            "TCP: connect to [AF_INET]198.51.100.7:443 failed: Connection timed out": not self.world.firewall_open,
            "VERIFY ERROR: depth=0, error=certificate is not yet valid": not self.world.clock_right,
            "VERIFY X509NAME ERROR: CN=x": "verify-x509-name gateway.example " not in text,
            "AUTH: Received control message: AUTH_FAILED": not (certificate and certificate[1] in self.known()),
        }
        return next((line for line, true in problems.items() if true), "")

    def known(self) -> list[str]:
        """Returns the root certificates of the gateway that this machine uses."""
        return [each["name"] for each in root_certificates(self.azure.documents[self.record.gateway])]

    def bootstrap_vpn(self, argv: Sequence[str] = ("aks-flex-node", "bootstrap-vpn")) -> None:
        """Runs `bootstrap-vpn` with the options of a command line; the VPN is connected afterwards."""
        found = parse(agent_commands.app, argv)
        self.run(make=found["auto_provision"], adopt=found["adopt"], renew=found["renew"])
        assert self.problem == ""

    def fails(self, name: str, argv: Sequence[str] = ("aks-flex-node", "bootstrap-vpn")) -> None:
        """Runs `bootstrap-vpn`, which must fail with this error."""
        assert failure(self.bootstrap_vpn, argv).name == name


class LoggingHost(RecordedHost):
    """A host whose journal contains the log of the simulated client."""

    def __init__(self, site: TunnelSite) -> None:
        super().__init__(FILES)
        self._site = site

    def query(self, *argv: str, seconds: float = 10.0) -> CommandResult:
        if argv == JOURNAL:
            return CommandResult(0, f"2026-11-15 15:52:51 {self._site.problem}\n")
        if argv in self._site.world.answers:
            return self._site.world.answers[argv]
        return super().query(*argv, seconds=seconds)


def run_az(site: Site, argv: Sequence[str]) -> None:
    """Does in the simulated Azure what an `az network vnet-gateway` command does."""
    options = dict(itertools.pairwise(argv))
    match tuple(argv[1:5]):
        case ("network", "vnet-gateway", "update", "--ids"):  # writes the resource as it is
            site.azure.documents[options["--ids"]]["properties"]["provisioningState"] = "Succeeded"
        case ("network", "vnet-gateway", "root-cert", "delete"):
            assert options["--gateway-name"] == GATEWAY.rpartition("/")[2]
            clients = site.azure.documents[GATEWAY]["properties"]["vpnClientConfiguration"]
            roots = clients["vpnClientRootCertificates"]
            clients["vpnClientRootCertificates"] = [each for each in roots if each["name"] != options["--name"]]
        case other:
            raise AssertionError(f"unknown command {other}")
