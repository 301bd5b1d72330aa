"""How far this machine is on its way to a node: the phase in state.json, kept over crashes and reboots."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Any

from aks_flex_node.host.actions import MakeDirectory, WriteFile
from aks_flex_node.timestamps import format_utc

if TYPE_CHECKING:
    from aks_flex_node.host.host import Host


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


ARC_PHASES = frozenset((Phase.ARC_REGISTERING, Phase.ARC_REGISTERED, Phase.ARC_FAILED))
VPN_PHASES = frozenset((Phase.VPN_BOOTSTRAPPING, Phase.VPN_CONNECTED, Phase.VPN_FAILED))
PRE_JOIN_PHASES = frozenset((Phase.NOT_STARTED, Phase.NODE_FAILED)) | ARC_PHASES | VPN_PHASES


@dataclass(frozen=True)
class NodeState:
    phase: Phase = Phase.NOT_STARTED
    step: str = ""  # the component at work, or at which it stopped
    error: str = ""  # its name
    message: str = ""
    node: str = ""
    pod_cidr: str = ""
    address: str = ""  # by which the node was last seen to reach the API server
    labels: str = ""  # the keys that we last put on the Node, with blanks between
    since: str = ""
    config: str = ""  # the file that was applied

    def with_phase(self, phase: Phase, **changes: Any) -> NodeState:
        return replace(self, phase=phase, since=format_utc(), **{"step": "", "error": "", "message": "", **changes})


def read(host: Host, path: str) -> NodeState:
    """The state that was kept; a machine whose state is lost or damaged has not started as far as we know."""
    try:
        document = json.loads(host.read(path) or b"{}")
        known = {key: str(value) for key, value in document.items() if key in NodeState.__dataclass_fields__}
        phase = Phase(known.pop("phase", Phase.NOT_STARTED.value))
        return NodeState(phase, **known)
    except (ValueError, AttributeError):
        return NodeState()


def write(host: Host, path: str, state: NodeState) -> None:
    folder = path.rpartition("/")[0]
    if host.stat(folder) is None:
        host.apply(MakeDirectory(folder))
    document = {**asdict(state), "phase": state.phase.value}
    host.apply(WriteFile(path, (json.dumps(document, indent=1) + "\n").encode(), 0o600))
