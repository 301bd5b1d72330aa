"""Creates nodes in every state that a page can show, in a running service, with the requests of their machines."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from aks_flex_node.timestamps import format_utc
from aks_flex_rp.resource.view import SILENT_AFTER
from aks_flex_rp.store.model import Cluster
from tests.service.rp.api.bodies import client_of, principal, token
from tests.service.rp.api.fake_clusters import PLANT

if TYPE_CHECKING:
    from tests.service.rp.api.service_harness import Running

RUNTIME = "containerd is not running: exit code 2. See `journalctl -u containerd`."
NO_ROUTE = "The API server did not answer within 30 s. Check that this machine reaches api.plant.example:443."
HOSTILE = "\"><script>alert('cause')</script><img src=x onerror=alert(1)>"
OLD = "1.33.13"
NEW = "1.34.4"


def node_page(name: str) -> str:
    """Returns the path of a node's page."""
    return f"/ui/nodes/{PLANT.subscription}/{PLANT.group}/{PLANT.name}/{name}"


@dataclass(frozen=True)
class Fleet:
    """The nodes of one service. Each method creates a node in the state that the method is named after."""

    running: Running

    def register(self) -> None:
        """Stores the cluster, as a connection to it would."""
        facts = self.running.clusters.known[PLANT.key].facts
        told = {"version": facts.version, "location": facts.location}
        self.running.call(self.running.store.put_cluster(Cluster(PLANT.key, str(PLANT), told, b""), None))

    def never_joined(self, name: str) -> None:
        self.running.admin.put(name, token(labels={"site": "hall-1"}), url=True)

    def fetched(self, name: str) -> None:
        """Creates a node that has fetched its configuration and has not joined the cluster."""
        made = self.running.admin.put(name, token(), url=True)
        self.running.admin.fetch(made.properties["configUrl"])

    def failed_to_join(self, name: str, why: str = NO_ROUTE) -> None:
        self._made(name)
        self._report(name, joinState="Failed", joinFailure=why)

    def ready(self, name: str, **properties: Any) -> None:
        self._made(name, **properties)
        self._joined(name)
        self._report(name, self._conditions())

    def not_ready(self, name: str, cause: str = RUNTIME, reason: str = "ServiceFailed") -> None:
        self.ready(name)
        self._report(name, self._conditions(Ready=("False", reason, cause)))

    def on_machine(self, name: str, **machine: str) -> None:
        """What the service knows of its machine."""
        found = self.running.node(name)
        status = {**found.status, "machine": machine}
        self.running.call(self.running.store.report(found.cluster, found.key, status, time.time()))

    def hostile(self, name: str) -> None:
        """Creates a node that reports HTML in its conditions and has labels that bypass validation."""
        self.ready(name)
        ready = ("False", "Evil", HOSTILE)
        self._report(name, [*self._conditions(Ready=ready), _told(HOSTILE, "True", "Evil", HOSTILE)])
        found = self.running.node(name)
        labels = {"nodeConfig": {"labels": {"evil": HOSTILE, HOSTILE: "evil"}}}
        changed = replace(found, properties={**found.properties, **labels})
        self.running.call(self.running.store.put_node(changed, found.etag))

    def drifted(self, name: str) -> None:
        self.ready(name)
        found = ("True", "DriftFound", "/etc/containerd/config.toml differs from what is wanted")
        drift: dict[str, Any] = {"driftCount": 3, "lastDriftDetected": format_utc(time.time() - 60)}
        self._report(name, self._conditions(Drifted=found), **drift)

    def upgrading(self, name: str) -> None:
        self.ready(name, versions={"kubernetes": OLD})
        self._made(name, versions={"kubernetes": NEW})
        wanted = self._version(name)
        doing = ("False", "InProgress", f"Applying configuration {wanted}.")
        self._report(name, self._conditions(ConfigApplied=doing), appliedConfigVersion="1", kubelet=OLD)

    def upgrade_failed(self, name: str) -> None:
        self.upgrading(name)
        why = "The new kubelet was not Ready within 120 s, so the one before runs again."
        failed = {"ConfigApplied": ("False", "RolledBack", why), "UpgradeFailed": ("True", "RolledBack", why)}
        self._report(name, self._conditions(**failed), appliedConfigVersion="1", kubelet=OLD)

    def silent(self, name: str, hours: float = 3) -> None:
        """Creates a node whose last heartbeat is this many hours old."""
        self._made(name)
        self._joined(name)
        then = time.time() - hours * 3600
        told = {"conditions": self._conditions(), "kubeletVersion": f"v{NEW}", "agentVersion": "1.0.0"}
        self.running.call(self.running.store.report(PLANT.key, name, told, then))
        store, since = self.running.store, time.time() - SILENT_AFTER
        for silence in self.running.call(store.unnoted_silences(since, 10, silent=True)):
            self.running.call(store.note_silence(silence, since))

    def speak(self) -> None:
        """Records a heartbeat of all nodes, except those that are meant to be silent."""
        store = self.running.store
        nodes = self.running.call(store.nodes(PLANT.key, limit=1000)).nodes
        heard = [each for each in nodes if each.last_seen and "silent" not in each.key]
        self.running.call(store.seen([(each.cluster, each.key, time.time()) for each in heard]))

    def all(self) -> None:
        """Creates one node of each kind, and a few more ready nodes."""
        for number in range(1, 6):
            self.ready(f"press-{number}", nodeConfig={"labels": {"site": "hall-1", "line": str(number)}})
        self.never_joined("oven-new")
        self.fetched("oven-fetched")
        self.failed_to_join("oven-failed")
        self.not_ready("lathe-stopped")
        self.hostile("lathe-hostile")
        self.drifted("saw-drifted")
        self.upgrading("saw-upgrading")
        self.upgrade_failed("saw-rolled-back")
        self.silent("mill-silent")

    def _made(self, name: str, **properties: Any) -> None:
        answer = self.running.admin.put(name, principal(client_of(name), **properties))
        assert answer.status in {200, 201}, answer

    def _joined(self, name: str) -> None:
        """Records the node as joined, as the watch of its cluster does."""
        heard = {"type": "Ready", "status": "True", "reason": "KubeletReady", "kubeletVersion": f"v{NEW}"}
        seen = {**heard, "lastHeartbeatTime": format_utc(time.time() + 5)}
        self.running.call(self.running.service.join_tracker.on_node_observed(PLANT.key, name, seen))

    def _report(
        self, name: str, conditions: list[dict[str, str]] | None = None, kubelet: str = NEW, **more: Any
    ) -> None:
        told: dict[str, Any] = {"agentVersion": "1.0.0"}
        if conditions is not None:
            told |= {"conditions": conditions, "kubeletVersion": f"v{kubelet}"}
            told |= {
                "appliedConfigVersion": self._version(name),
                "lastConfigApplied": format_utc(time.time() - 600),
            }
        answer = self.running.admin.report(name, {**told, **more})
        assert answer.status == 200, answer

    def _version(self, name: str) -> str:
        return str(self.running.admin.get(name).properties["configVersion"])

    @staticmethod
    def _conditions(**changes: tuple[str, str, str]) -> list[dict[str, str]]:
        well = {
            "Ready": ("True", "KubeletReady", "kubelet is posting ready status"),
            "ConfigApplied": ("True", "Applied", "The configuration is in effect."),
            "Drifted": ("False", "NoDrift", "The machine matches its configuration."),
            "UpgradeFailed": ("False", "NoFailure", ""),
        }
        return [_told(kind, *words) for kind, words in {**well, **changes}.items()]


def _told(kind: str, status: str, reason: str, message: str) -> dict[str, str]:
    return {"type": kind, "status": status, "reason": reason, "message": message}
