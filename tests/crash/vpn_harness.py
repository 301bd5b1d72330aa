"""A machine with a VPN, and an Azure that survives a crash: both are files below one root."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from aks_flex_node.agent.bootstrap.join import initialize
from aks_flex_node.agent.bootstrap.unbootstrap import Unbootstrap
from aks_flex_node.agent.components.vpn import COMPONENT, NAME, PROGRAM, UNIT, client_file
from aks_flex_node.agent.progress import ProgressReporter
from aks_flex_node.agent.vpn.connection import VpnConnection
from tests.crash import action_trace, harness
from tests.unit.agent.config.builders import CLUSTER_ID, Settings, load_plain, settings
from tests.unit.agent.vpn import fakes
from tests.unit.agent.vpn.fakes import API_NAME, Clock, FakeAzure

if TYPE_CHECKING:
    from pathlib import Path

    from tests.crash.crash_points import SimulatedHost

AZURE = ".azure.json"
VPN: Settings = {
    "azure.vpn.enabled": True,
    "azure.vpn.autoProvision": True,
    "azure.targetCluster.resourceId": CLUSTER_ID,
    "node.kubelet.serverURL": f"https://{API_NAME}:443",
}
CONFIG = load_plain(settings({**harness.SETTINGS, **VPN}), "test.json").config
action_trace.INPUTS[NAME] = (UNIT, client_file(CONFIG))
action_trace.LEFT_BY[NAME] = action_trace.Traces()


def seed(root: Path) -> Path:
    harness.seed(root)
    for path, text in {PROGRAM: "", "/etc/hosts": "127.0.0.1 localhost\n"}.items():
        (root / path.lstrip("/")).parent.mkdir(parents=True, exist_ok=True)
        (root / path.lstrip("/")).write_text(text)
    return root


def azure(host: SimulatedHost) -> FakeAzure:
    file = host.disk.root / AZURE
    known = FakeAzure(json.loads(file.read_text())) if file.exists() else FakeAzure()
    known.changed = lambda: _save(file, known)
    return known


def _save(file: Path, known: FakeAzure) -> None:
    file.write_text(fakes.saved(known.documents))


def connection(host: SimulatedHost, **words: bool) -> VpnConnection:
    engine = harness.engine(host, CONFIG)
    initialize(engine, ProgressReporter())
    return VpnConnection(engine, lambda _: None, fakes.vpn_environment(azure(host), Clock()), **words)


def connect(host: SimulatedHost) -> list[str]:
    """Connects the VPN; returns what is wrong afterwards."""
    connection(host).run()
    after = connection(host)
    actions = after.engine.plan(COMPONENT).actions
    running = json.loads((host.disk.root / ".simulated.json").read_text())["units"][NAME]
    held = {path: host.digest(path) for path in action_trace.INPUTS[NAME]}
    return [*map(str, actions), *(["the client runs with another configuration"] if running["held"] != held else [])]


def leave(host: SimulatedHost) -> list[str]:
    """Removes the VPN and the agent; returns what is left."""
    engine = harness.engine(host, CONFIG)
    problems: list[str] = []
    engine.remove(COMPONENT, problems.append)
    to_type = VpnConnection(engine, lambda _: None, fakes.vpn_environment(azure(host), Clock())).remove_from_azure()
    return [*problems, *to_type, *Unbootstrap(engine, None, ProgressReporter()).run()]
