"""The documents that ARM returns for node pools, Machines, bootstrap data and operations. Pure."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

from aks_flex_lab.arm.flex_pools.requests import FLEX_TYPE
from aks_flex_lab.versions import NodeVersions
from aks_flex_node.timestamps import format_utc

if TYPE_CHECKING:
    from aks_flex_lab.arm.documents import Document
    from aks_flex_lab.arm.flex_pools.model import (
        ArmErrorDetail,
        FlexPool,
        KubernetesSettings,
        PoolMachine,
        PoolOperation,
    )
    from aks_flex_lab.arm.flex_pools.nodes import ObservedNode
    from aks_flex_lab.arm.managed_clusters import ManagedCluster

POOL_TYPE = "Microsoft.ContainerService/managedClusters/agentPools"
MACHINE_TYPE = f"{POOL_TYPE}/machines"
SYSTEM_POOL = "system"


def pool_document(pool: FlexPool) -> Document:
    return {"id": pool.id, "name": pool.name, "type": POOL_TYPE, "properties": _pool_properties(pool)}


def pool_profile(pool: FlexPool) -> Document:
    """Returns the pool as the managed cluster lists it."""
    return {"name": pool.name, **_pool_properties(pool)}


def system_pool_document(cluster: ManagedCluster) -> Document:
    """Returns the cluster's first node pool, which the lab only lists."""
    properties = {
        "type": "VirtualMachineScaleSets",
        "mode": "System",
        "count": 1,
        "orchestratorVersion": cluster.version,
        "currentOrchestratorVersion": cluster.version,
        "provisioningState": "Succeeded",
        "powerState": {"code": "Running"},
    }
    id_ = f"{cluster.id}/agentPools/{SYSTEM_POOL}"
    return {"id": id_, "name": SYSTEM_POOL, "type": POOL_TYPE, "properties": properties}


def machine_document(machine: PoolMachine, node: ObservedNode | None) -> Document:
    """Returns a Machine. Its version and status follow its Node."""
    current = node.version if node and node.version else machine.current_version
    kubernetes = _settings(machine.settings)
    kubernetes["nodeLabels"] = {**machine.settings.node_labels, "kubernetes.azure.com/managed": "false"}
    properties: Document = {
        "kubernetes": {**kubernetes, "currentOrchestratorVersion": current, "nodeName": machine.node_name},
        "mode": "User",
        "provisioningState": machine.state,
        "eTag": machine.etag,
        "status": _machine_status(machine, node, current),
        **({"tags": machine.tags} if machine.tags else {}),
    }
    return {"id": machine.id, "name": machine.name, "type": MACHINE_TYPE, "properties": properties}


def bootstrap_data(pool: FlexPool, cluster: ManagedCluster, management: str, token: str, authority: str) -> Document:
    versions = NodeVersions()
    return {
        "azure": {
            "resourceManagerEndpoint": management,
            "targetCluster": {"resourceId": cluster.id},
            "targetAgentPoolName": pool.name,
            "bootstrapToken": {"token": token},
        },
        "components": {
            "kubernetes": pool.settings.orchestrator_version,
            "containerd": versions.containerd,
            "runc": versions.runc,
        },
        "networking": {"dnsServiceIP": cluster.dns_service_ip, "cniVersion": versions.cni},
        "node": {
            "maxPods": pool.settings.max_pods,
            "labels": pool.settings.node_labels,
            "taints": list(pool.settings.node_taints),
            "kubelet": {
                "clusterFQDN": cluster.fqdn,
                "caCertData": base64.b64encode(authority.encode()).decode(),
            },
        },
    }


def operation_document(operation: PoolOperation) -> Document:
    return {
        "name": operation.id,
        "status": operation.status,
        "startTime": format_utc(operation.started),
        **({"endTime": format_utc(operation.ended)} if operation.ended else {}),
        **({"error": _error(operation.error)} if operation.error else {}),
    }


def _pool_properties(pool: FlexPool) -> Document:
    return {
        **_settings(pool.settings),
        "type": FLEX_TYPE,
        "mode": "User",
        "currentOrchestratorVersion": pool.current_version,
        "provisioningState": pool.state,
        "powerState": {"code": "Running"},
        "eTag": pool.etag,
        "upgradeSettings": {"maxUnavailable": pool.max_unavailable},
        **({"tags": pool.tags} if pool.tags else {}),
        **({"status": {"provisioningError": _error(pool.error)}} if pool.error else {}),
    }


def _settings(settings: KubernetesSettings) -> dict[str, Any]:
    return {
        "orchestratorVersion": settings.orchestrator_version,
        "maxPods": settings.max_pods,
        "nodeLabels": settings.node_labels,
        "nodeTaints": list(settings.node_taints),
        **({"kubeletConfig": settings.kubelet_config} if settings.kubelet_config else {}),
    }


def _machine_status(machine: PoolMachine, node: ObservedNode | None, current: str) -> Document:
    wanted = machine.settings.orchestrator_version
    drifted = current != wanted
    return {
        "creationTimestamp": format_utc(machine.created),
        "driftAction": "Recreate" if drifted else "Synced",
        **({"driftReason": f"The node runs Kubernetes {current}, not {wanted}."} if drifted else {}),
        **({"vmState": "Running"} if node and node.is_ready else {}),
        **({"provisioningError": _error(machine.error)} if machine.error else {}),
    }


def _error(error: ArmErrorDetail) -> Document:
    return {"code": error.code, "message": error.message}
