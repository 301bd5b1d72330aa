"""Nodes and the machines that want to be them, each with a key of its own, as their agents call the service."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aks_flex_node.api.machine_identity import MACHINE_HEADER, MachineIdentity
from aks_flex_node.api.node_keys import KEY_HEADER, rotation_audience
from aks_flex_rp.clusters.node_controller import NodeMachine
from tests.node_key_client import HeldKey
from tests.service.rp.api.fake_clusters import PLANT

if TYPE_CHECKING:
    from aks_flex_rp.arm.ids import ClusterId
    from tests.service.rp.api.client import Api
    from tests.service.rp.api.service_harness import Running
    from tests.service.rp.api.traffic_recorder import Answer

AUDIENCE = "aks-flex-rp:of-plant"
MANAGED: dict[str, Any] = {"properties": {"continuousMonitoring": True}}
ONE = MachineIdentity("1" * 32, "edge-one", "10.0.0.1", "Ubuntu 22.04")
TWO = MachineIdentity("2" * 32, "edge-two", "10.0.0.2", "Ubuntu 22.04")
READY = {"type": "Ready", "status": "True", "reason": "KubeletReady", "kubeletVersion": "v1.34.4"}
HEARD_LATE = {**READY, "lastHeartbeatTime": "2100-01-01T00:00:00Z"}


def observe(service: Running, name: str, identity: MachineIdentity, cluster: ClusterId = PLANT) -> None:
    """Lets the cluster report the Node on this machine, Ready."""
    service.clusters.machines[name] = NodeMachine(identity, ready=True)
    seen = {**HEARD_LATE, "machine": identity}
    service.call(service.tracker.on_node_observed(cluster.key, name, seen))


class Machine:
    """A machine with a key."""

    def __init__(self, admin: Api, name: str, identity: MachineIdentity = ONE, key: HeldKey | None = None) -> None:
        self.admin, self.name, self.identity, self.key = admin, name, identity, key or HeldKey()

    def fetch(self, url: str, proof: str | None = None) -> Answer:
        path = self.admin.connection.path_of(url)
        shown = self.key.url_proof(url) if proof is None else proof
        headers = {MACHINE_HEADER: self.identity.header, **({KEY_HEADER: shown} if shown else {})}
        return self.admin.connection.ask("GET", path, headers)

    def assertion(self, **changes: Any) -> str:
        return self.key.assertion(PLANT.node(self.name), AUDIENCE, **changes)

    def api(self, assertion: str | None = None) -> Api:
        return self.admin.as_somebody(f"Bearer {self.assertion() if assertion is None else assertion}")

    def get(self, **headers: str) -> Answer:
        return self.api().get(self.name, **{MACHINE_HEADER: self.identity.header, **headers})

    def rotate(self, new: HeldKey) -> Answer:
        return rotate(self.api(), self.name, new, self.key)


def rotation(name: str, key: HeldKey, current: HeldKey | None = None) -> dict[str, str]:
    """Returns the body of a rotation to the key, with the consent of the current one."""
    node_id = PLANT.node(name).lower()
    consent = current.proof(rotation_audience(node_id, key.thumbprint)) if current else ""
    return {"proof": key.proof(node_id), **({"consent": consent} if consent else {})}


def rotate(api: Api, name: str, key: HeldKey, current: HeldKey | None = None) -> Answer:
    return api.act(name, "rotateKey", **rotation(name, key, current))


class NodeWithKey:
    def __init__(self, service: Running, name: str, body: dict[str, Any] = MANAGED) -> None:
        self.service, self.name, self.admin = service, name, service.admin
        self.url = self.admin.url_of(name, body)

    def machine(self, identity: MachineIdentity = ONE) -> Machine:
        return Machine(self.admin, self.name, identity)

    def fetched(self, identity: MachineIdentity = ONE) -> Machine:
        """Returns a machine that has fetched the configuration, so that its key is bound."""
        machine = self.machine(identity)
        assert machine.fetch(self.url).status == 200
        return machine

    def joined(self, identity: MachineIdentity = ONE) -> Machine:
        """Returns a machine that has fetched the configuration, and whose Node the cluster reports Ready."""
        machine = self.fetched(identity)
        self.observe(identity)
        return machine

    def observe(self, identity: MachineIdentity) -> None:
        observe(self.service, self.name, identity)

    def regenerate(self, *, replace: bool = False) -> str:
        return str(self.admin.new_url(self.name, replaceMachine=replace))

    def revoke(self) -> Answer:
        revoked = self.admin.act(self.name, "revokeKey")
        assert revoked.status == 200, revoked.text
        return revoked

    @property
    def status(self) -> Any:
        return self.admin.status(self.name)

    def condition(self, kind: str) -> Any:
        return self.admin.condition(self.name, kind)

    def events(self, what: str) -> Any:
        return self.admin.events(self.name, what)
