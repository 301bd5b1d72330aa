"""What a machine must be told to join the lab's cluster."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any

from aks_flex_node.lab import network
from aks_flex_node.lab.floor.join import Versions

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aks_flex_node.lab.lab import Lab
    from aks_flex_node.lab.machines.machine import Machine

PLACE = "/etc/aks-flex-node/config.json"


def configuration(
    lab: Lab, versions: Versions | None = None, changes: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """A configuration with a fresh token; `changes` go over its sections, setting by setting."""
    versions = versions or Versions()
    document: dict[str, Any] = {
        "azure": {"bootstrapToken": {"token": lab.cluster.bootstrap_token()}},
        "node": {
            "kubelet": {
                "serverURL": network.API_URL,
                "caCertData": base64.b64encode(lab.authority.certificate.read_bytes()).decode(),
                "dnsServiceIP": network.DNS_SERVICE,
            }
        },
        "kubernetes": {"version": versions.kubernetes},
        "containerd": {"version": versions.containerd},
        "runc": {"version": versions.runc},
        "cni": {"version": versions.cni},
        "npd": {"version": versions.npd},
    }
    return merged(document, changes or {})


def merged(document: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """One document over another, level by level."""
    result = dict(document)
    for key, value in changes.items():
        below = result.get(key)
        result[key] = merged(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return result


def give(machine: Machine, document: Mapping[str, Any], place: str = PLACE) -> None:
    """Write a configuration into a machine, for root alone."""
    script = 'umask 077; mkdir -p "$(dirname "$1")"; cat >"$1"'
    machine.run("sh", "-c", script, "sh", place, input=json.dumps(document, indent=1))
