"""Constants of the contract: the API version, and the annotations and labels of Node objects.

The agent and the resource provider import this module. The wheel of `az aks flex-node` contains a copy.
"""

from __future__ import annotations

API_VERSION = "2026-05-01-preview"
CLIENT_CERTIFICATE_FILE = "/etc/aks-flex-node/client.pem"  # of the service principal of a machine
CORDONED_ANNOTATION = (
    "flex.aks.azure.com/cordoned"  # on a Node: cordoned by its agent for an update, which also uncordons it
)
LEFT_ANNOTATION = "flex.aks.azure.com/left"  # on a Node: the machine was unbootstrapped
# On the Node of a machine that no daemon reports for: the configuration of its last join.
APPLIED_VERSION_ANNOTATION = "flex.aks.azure.com/applied-config-version"
APPLIED_TIME_ANNOTATION = "flex.aks.azure.com/last-config-applied"
# on a Node that was moved: hash of the machine ID of the machine on which it lives
MACHINE_ANNOTATION = "flex.aks.azure.com/machine"
MANAGED_LABEL = {"kubernetes.azure.com/managed": "false"}  # label of all flex nodes
# What a body may repeat of a resource and cannot set: around its properties, and among those of a node and of a pool.
ENVELOPE = ("id", "name", "type", "systemData", "etag")
READ_ONLY = (
    *("configVersion", "configUrl", "configUrlExpires", "config", "status", "lastSeen"),
    *("poolRevision", "effective", "origins", "nextConfig"),
)
POOL_READ_ONLY = (
    *("revision", "nodeCount", "pendingNodeCount"),
    *("stableRevision", "barredRevisions", "activeRollout"),
)
