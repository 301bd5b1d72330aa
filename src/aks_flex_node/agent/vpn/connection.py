"""Connects the machine to the cluster's network: finds the network, provisions the gateway, installs the profile,
starts OpenVPN and checks that the API server is reachable. Each step first checks what exists, so the next run
completes an interrupted one.
"""

from __future__ import annotations

import contextlib
import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING

from aks_flex_node.agent.components import vpn
from aks_flex_node.agent.components.vpn import COMPONENT, NAME, PROGRAM, client_file, vpn_dir
from aks_flex_node.agent.http.download_options import parse_ip_address
from aks_flex_node.agent.vpn import client_profile, disconnect, local_state, openvpn, virtual_network
from aks_flex_node.agent.vpn.client_certificate import ClientCertificate, root_data
from aks_flex_node.agent.vpn.dependencies import ApiServerReachability, VpnEnvironment
from aks_flex_node.agent.vpn.gateway import GatewayProvisioner, VpnGateway
from aks_flex_node.agent.vpn.local_state import VpnRecordStore, certificate_file
from aks_flex_node.agent.vpn.openvpn import diagnose
from aks_flex_node.agent.vpn.virtual_network import NETWORK_API, VirtualNetwork
from aks_flex_node.azure.operations import started_operation, wait_for_operation
from aks_flex_node.errors import MachineError
from aks_flex_node.host.actions import Remove, RestartUnit, Run, WriteFile

if TYPE_CHECKING:
    from collections.abc import Callable

    from aks_flex_node.agent.reconcile.engine import Engine
    from aks_flex_node.agent.vpn.client_profile import ClientProfile
    from aks_flex_node.azure.arm import ArmClient

UP_SECONDS = 120.0
RECONNECT_SECONDS = 20.0  # for an existing tunnel that is reconnecting
RESOLVED = "/run/systemd/resolve/stub-resolv.conf"
INSTALL_COMMAND = (
    "env",
    "DEBIAN_FRONTEND=noninteractive",
    "apt-get",
    "install",
    "--yes",
    "--no-install-recommends",
    "openvpn",
)


class VpnConnection:
    """Sets up the VPN. `make` creates a missing gateway, `adopt` changes a gateway that differs, and `renew` renews
    the certificate now.
    """

    def __init__(
        self,
        engine: Engine,
        note: Callable[[str], None],
        environment: VpnEnvironment | None = None,
        *,
        make: bool = False,
        adopt: bool = False,
        renew: bool = False,
    ) -> None:
        self.engine = engine
        self.host, self.config = engine.host, engine.config
        self.note = note
        self.environment = environment or VpnEnvironment()
        self.make = make or self.config.azure.vpn.auto_provision
        self.adopt = adopt or self.config.azure.vpn.adopt
        self.renew = renew
        self.records = VpnRecordStore(self.host, self.config)

    def run(self) -> None:
        """Completes the VPN setup and verifies that the API server is reachable through the tunnel."""
        if not self.config.azure.vpn.enabled:
            return
        if not self._is_settled():
            # The unit starts when its configuration exists.
            if self.host.stat(PROGRAM) is None:
                self.note("installing OpenVPN")
                with contextlib.suppress(MachineError):
                    self.host.apply(Run(INSTALL_COMMAND, "install OpenVPN", seconds=300.0))
            if self.host.stat(PROGRAM) is None:
                raise MachineError(
                    "openvpn-not-found",
                    f"OpenVPN ({PROGRAM}) is missing and could not be installed.",
                    "Run `apt-get install --no-install-recommends openvpn`, then run the same command again.",
                )
            self.engine.apply(COMPONENT)
            with self.environment.operator_client(self.config) as arm:
                self._establish(arm)
            self.engine.events.emit("vpn-connected", f"The VPN through {self.records.current.gateway} is connected")
        # Updates the machine's address, because the API server may now be reached from another one.
        self.engine.machine = local_state.with_stable_address(self.host, self.config, self.engine.machine)

    def is_renewal_due(self) -> bool:
        """Returns whether the certificate should be renewed. Makes no requests."""
        return local_state.is_renewal_due(self.host, self.config, self.environment.now())

    def _is_settled(self) -> bool:
        """Returns whether the VPN is completely set up, from local state only."""
        record = self.records.current
        return (
            not (self.renew or self.is_renewal_due())
            and not local_state.is_settings_changed(self.host, self.config)
            and record.roots == (record.active,)
            and self.host.digest(client_file(self.config)) == record.started
            and not self.engine.plan(COMPONENT).actions
            and self.environment.wait_until_up(RECONNECT_SECONDS)
        )

    def _establish(self, arm: ArmClient) -> None:
        network = virtual_network.find_virtual_network(arm, self.config, self.records.current.network)
        network = self._check(network)
        gateway = self._gateway(arm, network)
        self._switch_gateway(gateway.id, network.id)
        pair = self._certificate()
        GatewayProvisioner(gateway, self.config, network).ensure(pair, make=self.make, adopt=self.adopt)
        profile = self._profile(arm, gateway)
        settings = self.config.azure.vpn
        servers = openvpn.select_name_servers(settings.dns_servers, network.name_servers, profile.name_servers)
        host, port = virtual_network.api_server_address(self.config, network.cluster)
        self.records.update(name_servers=servers, server=f"{host}:{port}")
        script = self._up_script(servers, settings.dns_domains or (host,))
        direct = [host] if parse_ip_address(host) else []
        routes = [*network.address_ranges, *(f"{each}/32" for each in (*servers, *direct))]
        text = openvpn.client_configuration(profile, certificate_file(self.config, pair.name), routes, script)
        # The previous configuration is restored if the tunnel does not connect.
        before = self.host.read(client_file(self.config))
        self._start(text)
        self.note("waiting for the VPN tunnel")
        if not self.environment.wait_until_up(UP_SECONDS):
            error = diagnose(openvpn.read_log(self.host))
            if before and before != text and self.records.current.active:
                self._start(before)
            raise error
        self.records.update(active=pair.name)
        # Removes an unused up script. Called after the tunnel is up, because a rollback may need the script.
        path = f"{vpn_dir(self.config)}/up"
        if self.host.stat(path) is not None and path.encode() not in text:
            self.host.apply(Remove(path))
        reaching = ApiServerReachability(self.host, self.config, self.environment, network)
        reaching.update_hosts(arm, self.records.current.name_servers)
        reaching.check()
        gateway.remove_roots(tuple(each for each in self.records.current.roots if each != pair.name))
        self.records.update(roots=(pair.name,))
        disconnect.remove_from_former_gateways(self.records, arm, self.environment, self.note)
        self.environment.wait_until_up(RECONNECT_SECONDS)  # a changed gateway may reset the connection
        for each in self.host.list_dir(vpn_dir(self.config)):
            if each.endswith(".pem") and each != f"{pair.name}.pem":
                self.host.apply(Remove(f"{vpn_dir(self.config)}/{each}"))
        self.records.update(settings=local_state.settings_fingerprint(self.config))

    def _check(self, network: VirtualNetwork) -> VirtualNetwork:
        """Rejects overlapping address ranges before anything is created. Ranges of peered networks that this machine
        also uses are not routed through the VPN.
        """
        pool = virtual_network.IPv4Range(self.config.azure.vpn.p2s_gateway_cidr)
        ours = frozenset({vpn.LINK, "flex0", "cni0"})  # the tunnel and the pod networks of this node
        here = virtual_network.host_ranges(
            self.host.query("ip", "-j", "addr").out, self.host.query("ip", "-j", "route").out, ours
        )
        reachable = tuple(
            each
            for each in network.address_ranges
            if each in network.own_ranges or not virtual_network.is_taken(each, here)
        )
        if left := [each for each in network.address_ranges if each not in reachable]:
            self.note(f"not routed through the VPN, because this machine uses these addresses: {', '.join(left)}")
        network = replace(network, address_ranges=reachable)
        virtual_network.check_overlaps(
            pool, network.routed_ranges, virtual_network.cluster_ranges(network.cluster), here
        )
        return network

    def _gateway(self, arm: ArmClient, network: VirtualNetwork) -> VpnGateway:
        kind = "Microsoft.Network/virtualNetworkGateways"
        path = f"{network.group}/providers/{kind}/{self.config.azure.vpn.gateway_name}"
        # The case of Azure IDs varies, so a recorded ID is reused unchanged.
        known = [self.records.current.gateway, *(each for each, _ in self.records.current.former)]
        id_ = next((each for each in known if each.lower() == path.lower()), path)
        return VpnGateway(id_, arm, self.records, self.environment.operation_timeout, self.note)

    def _switch_gateway(self, gateway: str, network: str) -> None:
        """Records another gateway. The machine is removed from the former gateway after the new one works."""
        before = self.records.current
        if before.gateway in {"", gateway}:
            return self.records.update(network=network, gateway=gateway)
        known = (*before.former, *((before.gateway, each) for each in before.roots))
        roots = tuple(name for one, name in known if one == gateway)
        former = tuple(each for each in known if each[0] != gateway)
        return self.records.update(network=network, gateway=gateway, roots=roots, former=former)

    def _certificate(self) -> ClientCertificate:
        """Returns the current certificate if it is fresh, else an unused one of an earlier run, else a new one."""
        active = self.records.current.active
        stems = (
            each.removesuffix(".pem") for each in self.host.list_dir(vpn_dir(self.config)) if each.endswith(".pem")
        )
        others = sorted(each for each in stems if each != active)
        for name in [*([] if self.renew or self.is_renewal_due() else [active]), *others]:
            pem = self.host.read(certificate_file(self.config, name)) if name else None
            if pem and root_data(pem) and local_state.is_certificate_fresh(pem, self.config, self.environment.now()):
                return ClientCertificate(name, root_data(pem), pem)
        pair = self.environment.make_certificate(self.engine.machine.node_name(self.config))
        self.host.apply(WriteFile(certificate_file(self.config, pair.name), pair.pem, 0o600, secret=True))
        return pair

    def _profile(self, arm: ArmClient, gateway: VpnGateway) -> ClientProfile:
        body = {"processorArchitecture": "Amd64", "authenticationMethod": "EAPTLS"}
        path = f"{gateway.id}/generatevpnprofile"
        reply = arm.send("POST", path, NETWORK_API, body)
        made = reply.body
        if reply.status == 202:
            operation = started_operation(reply, "the VPN profile", path, NETWORK_API, self.environment.now())
            made = wait_for_operation(arm, operation, self.environment.operation_timeout, self.note)
        profile = client_profile.parse_profile(
            client_profile.unpack_profile(self.environment.download(self.config, client_profile.download_link(made)))
        )
        if profile.dropped:
            self.note(f"ignored in the VPN profile: {', '.join(profile.dropped)}")
        return profile

    def _up_script(self, servers: tuple[str, ...], domains: tuple[str, ...]) -> str:
        """Writes the script that configures DNS. Only systemd-resolved supports DNS servers for specific domains."""
        path = f"{vpn_dir(self.config)}/up"
        if not servers or self.host.stat(RESOLVED) is None:
            return ""
        self._write(path, openvpn.up_script(servers, domains), 0o700)
        return path

    def _write(self, path: str, content: bytes, mode: int) -> None:
        if self.host.read(path) != content:
            self.host.apply(WriteFile(path, content, mode, secret=True))

    def _start(self, text: bytes) -> None:
        digest = hashlib.sha256(text).hexdigest()
        was_running = self.host.unit(NAME).running
        self._write(client_file(self.config), text, 0o600)
        self.engine.apply(COMPONENT)
        if was_running and self.records.current.started != digest:
            self.host.apply(RestartUnit(NAME))
        self.records.update(started=digest)

    def remove_from_azure(self) -> list[str]:
        """Removes this machine from the gateways in Azure. Returns the commands for what could not be removed."""
        return disconnect.remove_from_gateways(self.records, self.config, self.environment, self.note)
