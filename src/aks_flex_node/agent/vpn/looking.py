"""How the VPN is, as data. Only this machine is asked."""

from __future__ import annotations

import hashlib
import json
import time
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

from aks_flex_node.agent import certificates
from aks_flex_node.agent.components.vpn import LINK, NAME, client_file, vpn_dir
from aks_flex_node.agent.config import derived
from aks_flex_node.agent.machine import address_towards
from aks_flex_node.agent.reconcile import node_state
from aks_flex_node.agent.vpn import records, tunnels
from aks_flex_node.agent.vpn.pairs import DAYS

if TYPE_CHECKING:
    from collections.abc import Callable

    from aks_flex_node.agent.config.models import NodeConfig
    from aks_flex_node.agent.machine import Machine
    from aks_flex_node.agent.vpn.records import Record
    from aks_flex_node.agent.vpn.tunnels import Tunnel
    from aks_flex_node.host.host import Host

DAY = 86400.0


def status(host: Host, config: NodeConfig, look: Callable[[], Tunnel | None] = tunnels.look) -> dict[str, Any]:
    """`status` is disabled, NotConfigured, Connecting, Connected, Disconnected or unknown."""
    if not config.azure.vpn.enabled:
        return {"status": "disabled"}
    if not host.live:
        return {"status": "unknown"}
    record, unit = records.read(host, config), host.unit(NAME)
    if host.look(client_file(config)) is None:
        return {"status": "NotConfigured", "gateway": record.gateway or None}
    tunnel = look() if unit.running else None
    return {
        "status": _status(running=unit.running, tunnel=tunnel),
        "service": unit.active,
        "restarts": unit.restarts,
        "interface": LINK if host.ask("ip", "link", "show", "dev", LINK).ok else None,
        "address": (tunnel.address if tunnel else "") or None,
        "since": _moment(tunnel.since) if tunnel else None,
        "gateway": record.gateway or None,
        "apiServer": record.server or None,
        "certificate": certificate(host, config, record),
    }


def _status(*, running: bool, tunnel: Tunnel | None) -> str:
    if not running:
        return "Disconnected"
    return "Connected" if tunnel and tunnel.up else "Connecting"


def certificate(host: Host, config: NodeConfig, record: Record) -> dict[str, Any] | None:
    end = expiry(host, config, record)
    if end is None:
        return None
    left = (end - datetime.now(timezone.utc)).total_seconds() / DAY
    return {"expires": end.strftime("%Y-%m-%dT%H:%M:%SZ"), "days": round(left, 1)}


def due(host: Host, config: NodeConfig, now: float) -> bool:
    """Whether the client's certificate should be renewed."""
    record = records.read(host, config)
    if not (config.azure.vpn.enabled and record.active):
        return False
    return not lasts(host.read(pair_file(config, record.active)) or b"", config, now)


def lasts(pem: bytes, config: NodeConfig, now: float) -> bool:
    """Whether a certificate is valid, and for a while; one that was made by a clock that was wrong may not be."""
    validity, moment = certificates.validity(pem), datetime.fromtimestamp(now, timezone.utc)
    margin = timedelta(days=min(config.azure.vpn.renew_days, DAYS // 2))
    return validity is not None and validity[0] <= moment and validity[1] - moment >= margin


def is_other(host: Host, config: NodeConfig) -> bool:
    """Whether the configuration means another tunnel than the one that was made, or none was made yet."""
    return config.azure.vpn.enabled and records.read(host, config).settings != fingerprint(config)


def fingerprint(config: NodeConfig) -> str:
    """Changes when another gateway or another network is meant; not when a release brings another setting."""
    settings = config.azure.vpn.model_dump(exclude={"auto_provision", "adopt", "renew_days"}, exclude_defaults=True)
    told = [settings, derived.cluster(config), config.node.kubelet.server_url]
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()


def steady(host: Host, config: NodeConfig, machine: Machine) -> Machine:
    """The machine with the address by which the cluster knows it: while there is no tunnel, packets for the cluster
    would go elsewhere and from another address, and it is still the node that it was."""
    if not config.azure.vpn.enabled or config.node.ip:
        return machine
    there = host.ask("ip", "link", "show", "dev", LINK).ok
    found = address_towards(host, config.node.kubelet.server_url) if there else kept_address(host, config)
    return replace(machine, address=found or machine.address)


def kept_address(host: Host, config: NodeConfig) -> str:
    return node_state.read(host, f"{config.paths.data_dir}/state.json").address


def expiry(host: Host, config: NodeConfig, record: Record) -> datetime | None:
    """When the client's certificate ends; None when there is none."""
    return certificates.expiry(host.read(pair_file(config, record.active)) or b"") if record.active else None


def pair_file(config: NodeConfig, name: str) -> str:
    return f"{vpn_dir(config)}/{name}.pem"


def _moment(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
