"""Local state of the VPN, read without requests to Azure: the record of what was created for it, its status, and
whether its client certificate is due for renewal.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

from aks_flex_node.agent import certificates
from aks_flex_node.agent.components.vpn import LINK, NAME, client_file, record_file, vpn_dir
from aks_flex_node.agent.config import resolved
from aks_flex_node.agent.machine import Machine, address_towards
from aks_flex_node.agent.reconcile import node_state
from aks_flex_node.agent.vpn import openvpn
from aks_flex_node.agent.vpn.client_certificate import VALIDITY_DAYS
from aks_flex_node.azure.operations import AzureOperation  # noqa: TC001 - a type of a record
from aks_flex_node.host.records import RecordStore
from aks_flex_node.lean_dataclass import frozen
from aks_flex_node.settings.base import to_document
from aks_flex_node.timestamps import format_utc

if TYPE_CHECKING:
    from collections.abc import Callable

    from aks_flex_node.agent.vpn.openvpn import TunnelState
    from aks_flex_node.host.host import Host
    from aks_flex_node.settings.models import NodeConfig


@frozen
class VpnRecord:
    settings: str = ""  # fingerprint of the settings that the VPN was set up with
    network: str = ""  # ARM IDs
    gateway: str = ""
    made: tuple[str, ...] = ()  # resources that the agent created, or may have created
    roots: tuple[str, ...] = ()  # names of root certificates of this machine that are, or may be, on the gateway
    former: tuple[tuple[str, str], ...] = ()  # former gateways, each with the name of a root certificate
    active: str = ""  # name of the root certificate in use
    operation: AzureOperation | None = None  # last known operation in Azure
    started: str = ""  # SHA-256 of the configuration that the client runs with
    server: str = ""  # host and port of the API server
    name_servers: tuple[str, ...] = ()


class VpnRecordStore(RecordStore[VpnRecord]):
    """The VPN record of this machine. An unreadable one counts as empty: the resources are found again by name."""

    def __init__(self, host: Host, config: NodeConfig) -> None:
        super().__init__(host, record_file(config), VpnRecord)


def status(
    host: Host, config: NodeConfig, read_tunnel: Callable[[], TunnelState | None] = openvpn.read_state
) -> dict[str, Any]:
    """Returns the VPN status: disabled, NotConfigured, Connecting, Connected, Disconnected or unknown."""
    if not config.azure.vpn.enabled:
        return {"status": "disabled"}
    if not host.live:
        return {"status": "unknown"}
    record, unit = VpnRecordStore(host, config).current, host.unit(NAME)
    if host.stat(client_file(config)) is None:
        return {"status": "NotConfigured", "gateway": record.gateway or None}
    tunnel = read_tunnel() if unit.running else None
    certificate = certificate_file(config, record.active) if record.active else ""
    return {
        "status": _status(running=unit.running, tunnel=tunnel),
        "service": unit.active,
        "restarts": unit.restarts,
        "interface": LINK if host.query("ip", "link", "show", "dev", LINK).ok else None,
        "address": (tunnel.address if tunnel else "") or None,
        "since": format_utc(tunnel.since) if tunnel else None,
        "gateway": record.gateway or None,
        "apiServer": record.server or None,
        "certificate": certificates.describe_expiry(host, certificate) if certificate else None,
    }


def _status(*, running: bool, tunnel: TunnelState | None) -> str:
    if not running:
        return "Disconnected"
    return "Connected" if tunnel and tunnel.is_up else "Connecting"


def is_renewal_due(host: Host, config: NodeConfig, now: float) -> bool:
    """Returns whether the client certificate should be renewed."""
    record = VpnRecordStore(host, config).current
    if not (config.azure.vpn.enabled and record.active):
        return False
    return not is_certificate_fresh(host.read(certificate_file(config, record.active)) or b"", config, now)


def is_certificate_fresh(pem: bytes, config: NodeConfig, now: float) -> bool:
    """Returns whether a certificate is valid and not due for renewal. After a clock change it may be invalid."""
    validity, moment = certificates.validity(pem), datetime.fromtimestamp(now, timezone.utc)
    margin = timedelta(days=min(config.azure.vpn.renew_days, VALIDITY_DAYS // 2))
    return validity is not None and validity[0] <= moment and validity[1] - moment >= margin


def is_settings_changed(host: Host, config: NodeConfig) -> bool:
    """Returns whether the VPN settings have changed since the setup, or the VPN was not set up yet."""
    return config.azure.vpn.enabled and VpnRecordStore(host, config).current.settings != settings_fingerprint(config)


def settings_fingerprint(config: NodeConfig) -> str:
    """Returns a digest that changes with the gateway or the network, but not when a release adds a setting."""
    settings = to_document(config.azure.vpn, "defaults")
    for ignored in ("autoProvision", "adopt", "renewDays"):
        settings.pop(ignored, None)
    inputs = [settings, resolved.target_cluster(config), config.node.kubelet.server_url]
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()


def with_stable_address(host: Host, config: NodeConfig, machine: Machine) -> Machine:
    """Returns the machine with the address by which the cluster knows it. Without the tunnel, packets to the cluster
    would have another source address.
    """
    if not config.azure.vpn.enabled or config.node.ip:
        return machine
    has_link = host.query("ip", "link", "show", "dev", LINK).ok
    found = (
        address_towards(host, config.node.kubelet.server_url) if has_link else node_state.load(host, config).address
    )
    return replace(machine, address=found or machine.address)


def certificate_file(config: NodeConfig, name: str) -> str:
    return f"{vpn_dir(config)}/{name}.pem"
