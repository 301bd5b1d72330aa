"""Connects the machine to the cluster's network: finds the network, provisions the gateway, installs the profile,
starts OpenVPN and checks that the API server is reachable. Each step first checks what exists, so the next run
completes an interrupted one. Also removes what belongs to this machine in Azure: its root certificate always, the
gateway only on request.
"""

from __future__ import annotations

import contextlib
import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING

from aks_flex_node.agent.components import vpn
from aks_flex_node.agent.components.vpn import COMPONENT, NAME, PROGRAM, client_file, vpn_dir
from aks_flex_node.agent.http.download_options import parse_ip_address
from aks_flex_node.agent.vpn import client_profile, gateway_spec, local_state, openvpn, virtual_network
from aks_flex_node.agent.vpn.client_certificate import ClientCertificate, root_data
from aks_flex_node.agent.vpn.dependencies import ApiServerReachability, VpnEnvironment
from aks_flex_node.agent.vpn.gateway import GatewayProvisioner, VpnGateway
from aks_flex_node.agent.vpn.local_state import VpnRecordStore, certificate_file
from aks_flex_node.agent.vpn.openvpn import diagnose
from aks_flex_node.agent.vpn.virtual_network import NETWORK_API, VirtualNetwork
from aks_flex_node.azure.operations import started_operation, wait_for_operation
from aks_flex_node.errors import ConfigError, FlexError, MachineError
from aks_flex_node.host.actions import Remove, RestartUnit, Run, WriteFile

if TYPE_CHECKING:
    from collections.abc import Callable

    from aks_flex_node.agent.reconcile.engine import Engine
    from aks_flex_node.agent.vpn.client_profile import ClientProfile
    from aks_flex_node.azure.arm import ArmClient

UP_SECONDS = 120.0
RECONNECT_SECONDS = 20.0  # for an existing tunnel that is reconnecting
DISCONNECT_SECONDS = 600.0  # removing a machine does not wait for an hour
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
        return self.renew or local_state.is_renewal_due(self.host, self.config, self.environment.now())

    def _is_settled(self) -> bool:
        """Returns whether the VPN is completely set up, from local state only."""
        record = self.records.current
        return (
            not self.is_renewal_due()
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
        self._remove_from_former_gateways(arm)
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
        return self._open_gateway(id_, arm)

    def _open_gateway(self, gateway: str, arm: ArmClient, seconds: float | None = None) -> VpnGateway:
        timeout = self.environment.operation_timeout
        return VpnGateway(gateway, arm, self.records, replace(timeout, seconds=seconds or timeout.seconds), self.note)

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
        for name in [*([] if self.is_renewal_due() else [active]), *others]:
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
        """Removes this machine's root certificates from the gateways. Returns the commands for those that failed."""
        record, left = self.records.current, list[str]()
        known = [*record.former, *((record.gateway, each) for each in record.roots)]
        gateways = {gateway: tuple(each for one, each in known if one == gateway) for gateway, _ in known if gateway}
        for gateway, names in gateways.items():
            self.note("removing this machine's certificate from the VPN gateway")
            try:
                with self.environment.operator_client(self.config) as arm:
                    self._open_gateway(gateway, arm, DISCONNECT_SECONDS).remove_roots(names)
            except FlexError as error:
                self.note(f"could not remove this machine's certificate from the VPN gateway: {error.message}")
                left += [manual_command(gateway, each) for each in names]
        if record.made:
            self.note(
                "these resources of the VPN are not deleted, and Azure continues to charge for them: "
                f"{', '.join(record.made)}"
            )
        self.records.remove()
        return left

    def _remove_from_former_gateways(self, arm: ArmClient) -> None:
        """Removes this machine from gateways that it used before. Failures are reported, and retried when the machine
        is removed.
        """
        for gateway, name in self.records.current.former:
            try:
                self._open_gateway(gateway, arm, DISCONNECT_SECONDS).remove_roots((name,))
            except FlexError as error:
                self.note(
                    f"could not remove this machine's certificate from {gateway}: {error.message} Run: "
                    f"{manual_command(gateway, name)}"
                )
                continue
            self.records.update(former=tuple(each for each in self.records.current.former if each != (gateway, name)))

    def remove_gateway(self) -> None:
        """Deletes the VPN resources that this machine created, if no other machine uses them."""
        record = self.records.current
        if not record.made:
            raise ConfigError(
                "vpn-gateway-not-owned",
                f"The VPN gateway {record.gateway or 'of this machine'} was not created by this machine, so it is "
                "not deleted.",
                "Delete it on the machine that created it, or with `az network vnet-gateway delete`.",
            )
        with self.environment.operator_client(self.config) as arm:
            gateway = self._open_gateway(record.gateway, arm)
            for made in record.made:
                _refuse_used(replace(gateway, id=made), (*record.roots, *(name for _, name in record.former)))
            for resource in reversed(record.made):
                gateway.remove(resource, resource.rpartition("/")[2])
        self.records.update(
            roots=() if record.gateway in record.made else record.roots,
            former=tuple(each for each in record.former if each[0] not in record.made),
        )


def manual_command(gateway: str, root: str) -> str:
    group, name = gateway.split("/")[4], gateway.rpartition("/")[2]
    return f"az network vnet-gateway root-cert delete --resource-group {group} --gateway-name {name} --name {root}"


def _refuse_used(gateway: VpnGateway, ours: tuple[str, ...]) -> None:
    """Raises ConfigError if other machines have root certificates on the gateway."""
    names = [each["name"] for each in gateway_spec.root_certificates(gateway.read() or {})]
    if others := [name for name in names if name not in ours]:
        raise ConfigError(
            "vpn-gateway-in-use",
            f"The VPN gateway {gateway.id} is used by other machines: {', '.join(others)}. It was not deleted.",
            "Remove the VPN of these machines first, then run the same command again.",
        )
