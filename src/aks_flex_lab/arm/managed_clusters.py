"""The managed clusters of the lab's subscription, stored in a file that the server rereads."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from aks_flex_lab.arm.documents import DocumentStore

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

SUBSCRIPTION_ID = "f1e0f1e0-0000-4000-8000-00000000000a"
PROVIDER_NAMESPACE = "Microsoft.ContainerService"


@dataclass(frozen=True)
class ManagedCluster:
    id: str
    location: str
    version: str  # the Kubernetes version
    fqdn: str
    kubeconfig: str  # path of the administrator's kubeconfig
    service_cidr: str
    dns_service_ip: str
    pod_cidr: str
    subnet: str = ""  # ID of the subnet of its nodes

    @property
    def name(self) -> str:
        return self.id.rpartition("/")[2]

    def shown(self, tenant: str, pools: Iterable[dict[str, Any]] = ()) -> dict[str, Any]:
        """Returns the ARM document of the cluster, with the properties that the lab uses."""
        group = self.id.split("/")[4]
        pool = {
            "name": "system",
            "mode": "System",
            "count": 1,
            **({"vnetSubnetID": self.subnet} if self.subnet else {}),
        }
        return {
            "id": self.id,
            "name": self.name,
            "type": f"{PROVIDER_NAMESPACE}/ManagedClusters",
            "location": self.location,
            "identity": {"type": "SystemAssigned", "tenantId": tenant},
            "properties": {
                "provisioningState": "Succeeded",
                "kubernetesVersion": self.version,
                "currentKubernetesVersion": self.version,
                "fqdn": self.fqdn,
                "nodeResourceGroup": f"MC_{group}_{self.name}_{self.location}",
                "agentPoolProfiles": [pool, *pools],
                "networkProfile": {
                    "networkPlugin": "kubenet",
                    "serviceCidr": self.service_cidr,
                    "dnsServiceIP": self.dns_service_ip,
                    "podCidr": self.pod_cidr,
                },
            },
        }


class ManagedClusters:
    """The clusters in a state directory."""

    def __init__(self, state: Path) -> None:
        self._store = DocumentStore(state / "clusters.json", "the lab's clusters")

    def clusters(self) -> list[ManagedCluster]:
        return [ManagedCluster(**each) for each in self._store.all()]

    def find(self, id: str) -> ManagedCluster | None:  # noqa: A002 - ARM's own word
        found = self._store.find(id)
        return ManagedCluster(**found) if found else None

    def register(self, cluster: ManagedCluster) -> None:
        """Adds a cluster, and replaces one with the same ID."""
        self._store.put(asdict(cluster))


def subscription_document(tenant: str) -> dict[str, Any]:
    return {
        "id": f"/subscriptions/{SUBSCRIPTION_ID}",
        "subscriptionId": SUBSCRIPTION_ID,
        "tenantId": tenant,
        "displayName": "aks-flex-lab",
        "state": "Enabled",
        "authorizationSource": "RoleBased",
        "managedByTenants": [],
        "subscriptionPolicies": {"spendingLimit": "Off", "quotaId": "lab", "locationPlacementId": "lab"},
    }
