"""How it stands with Azure Arc, by what this machine knows: Azure is not asked."""

from __future__ import annotations

import configparser
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aks_flex_node.agent.arc.records import Records
from aks_flex_node.agent.arc.wanted import machine_id
from aks_flex_node.agent.reconcile import node_state
from aks_flex_node.agent.reconcile.node_state import Phase

if TYPE_CHECKING:
    from aks_flex_node.agent.config.models import NodeConfig
    from aks_flex_node.host.host import Answer, Host

PROGRAMS = ("/usr/bin/azcmagent", "/opt/azcmagent/bin/azcmagent")
# Where the programs of the Connected Machine agent lie, the guest configuration that comes with it included.
FOLDERS = ("/opt/azcmagent/", "/opt/GC_Ext/", "/opt/GC_Service/")
UNITS = ("/etc/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system")
METADATA = "himds"  # the program that hands out tokens of the machine's identity
SHOW_SECONDS = 20.0
STATUSES = ("Connected", "Disconnected", "Expired")


@dataclass(frozen=True)
class Shown:
    """What azcmagent says of itself."""

    status: str = ""
    id: str = ""  # of the machine in Azure; empty when it has none
    location: str = ""
    version: str = ""
    heartbeat: str = ""

    @property
    def is_registered(self) -> bool:
        return bool(self.id)


def program(host: Host) -> str | None:
    """Where azcmagent is."""
    return next((path for path in PROGRAMS if host.look(path)), None)


def ask(host: Host, azcmagent: str) -> Answer:
    return host.ask(azcmagent, "show", "-j", seconds=SHOW_SECONDS)


def shown(text: str) -> Shown | None:
    """What `azcmagent show -j` says; None when that is nothing to go by."""
    try:
        told = json.loads(text)
        names = [str(told.get(key) or "") for key in ("subscriptionId", "resourceGroup", "resourceName")]
    except (ValueError, AttributeError):
        return None
    return Shown(
        str(told.get("status") or ""),
        str(told.get("resourceId") or "") or (machine_id(*names) if all(names) else ""),
        str(told.get("location") or ""),
        str(told.get("agentVersion") or ""),
        str(told.get("lastHeartbeat") or told.get("agentLastHeartbeat") or ""),
    )


def services(host: Host) -> dict[str, str]:
    """The units whose program is one of azcmagent's, each with that program."""
    found: dict[str, str] = {}
    for folder in UNITS:
        for name in host.names(folder):
            if name.endswith(".service") and name not in found:
                started = _program_of((host.read(f"{folder}/{name}") or b"").decode(errors="replace"))
                if started.startswith(FOLDERS):
                    found[name] = started
    return found


def _program_of(unit: str) -> str:
    """What a unit file starts."""
    parser = configparser.RawConfigParser(strict=False, allow_no_value=True, delimiters=("=",))
    try:
        parser.read_string(unit)
        words = (parser.get("Service", "ExecStart", fallback="") or "").split()
    except configparser.Error:
        return ""
    return words[0].lstrip("-+!@:") if words else ""


def metadata_service(host: Host) -> str | None:
    """The unit that answers as HIMDS, by whatever name."""
    return next((unit for unit, started in services(host).items() if started.rpartition("/")[2] == METADATA), None)


def status(host: Host, config: NodeConfig) -> dict[str, Any]:
    """For `status` and `arc status`."""
    azcmagent = program(host)
    if not config.azure.arc.enabled and not Records(host, config).exists:
        return {"status": "disabled"}
    if azcmagent is None:
        return {"status": _on_the_way(host, config)}
    answer = ask(host, azcmagent)
    told = shown(answer.out) if answer.ok else None
    if told is None:
        return {"status": "unknown", "message": f"azcmagent says: {answer.last_words}", **_services(host)}
    if not told.is_registered:
        return {"status": _on_the_way(host, config), "agentVersion": told.version, **_services(host)}
    return {
        "status": told.status if told.status in STATUSES else "unknown",
        "machine": told.id.rpartition("/")[2],
        "resourceId": told.id,
        "location": told.location,
        "principalId": Records(host, config).read().principal,
        "agentVersion": told.version,
        "lastHeartbeat": told.heartbeat,
        **_services(host),
    }


def _on_the_way(host: Host, config: NodeConfig) -> str:
    known = node_state.read(host, f"{config.paths.data_dir}/state.json")
    return "Registering" if known.phase == Phase.ARC_REGISTERING.value else "NotRegistered"


def _services(host: Host) -> dict[str, Any]:
    return {"services": {unit: host.unit(unit).active for unit in sorted(services(host))}}
