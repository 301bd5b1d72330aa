"""The node's state in state.json: join phase, last error and node name, kept across crashes and reboots."""

from __future__ import annotations

from dataclasses import replace
from enum import Enum
from typing import TYPE_CHECKING, Any

from aks_flex_node.agent.paths import state_file
from aks_flex_node.host.records import RecordFile, make_folder
from aks_flex_node.lean_dataclass import frozen
from aks_flex_node.timestamps import format_utc

if TYPE_CHECKING:
    from aks_flex_node.host.host import Host
    from aks_flex_node.settings.models import NodeConfig


class Phase(Enum):
    NOT_STARTED = "NotStarted"
    ARC_REGISTERING = "ArcRegistering"
    ARC_REGISTERED = "ArcRegistered"
    ARC_FAILED = "ArcFailed"
    VPN_BOOTSTRAPPING = "VPNBootstrapping"
    VPN_CONNECTED = "VPNConnected"
    VPN_FAILED = "VPNFailed"
    NODE_BOOTSTRAPPING = "NodeBootstrapping"
    NODE_JOINED = "NodeJoined"
    NODE_FAILED = "NodeFailed"
    RESETTING = "Resetting"


# When a prerequisite has started, is completed, and has failed.
ARC_PHASES = (Phase.ARC_REGISTERING, Phase.ARC_REGISTERED, Phase.ARC_FAILED)
VPN_PHASES = (Phase.VPN_BOOTSTRAPPING, Phase.VPN_CONNECTED, Phase.VPN_FAILED)


@frozen
class NodeState:
    phase: Phase = Phase.NOT_STARTED
    step: str = ""  # the current or failed step
    error: str = ""  # error name
    message: str = ""
    node: str = ""
    pod_cidr: str = ""
    address: str = ""  # last known source address towards the API server
    labels: str = ""  # keys last set on the Node, separated by spaces
    since: str = ""
    config: str = ""  # path of the applied file
    applied: str = ""  # time of the last complete join, which applied the configuration

    def with_phase(self, phase: Phase, **changes: Any) -> NodeState:
        return replace(self, phase=phase, since=format_utc(), **{"step": "", "error": "", "message": "", **changes})


def read(host: Host, path: str) -> NodeState:
    """Reads the stored state; a missing or damaged file counts as not started."""
    return RecordFile(path, NodeState).read(host) or NodeState()


def load(host: Host, config: NodeConfig) -> NodeState:
    return read(host, state_file(config.paths.data_dir))


def save(host: Host, config: NodeConfig, state: NodeState) -> None:
    write(host, state_file(config.paths.data_dir), state)


def write(host: Host, path: str, state: NodeState) -> None:
    make_folder(host, path)
    RecordFile(path, NodeState).write(host, state)
