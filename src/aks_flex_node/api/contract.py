"""Constants of the contract: the version of the API, and annotations and labels on Node objects.

Agent and resource provider import this module; the wheel of `az aks flex-node` holds a copy.
"""

from __future__ import annotations

API_VERSION = "2026-05-01-preview"
CORDONED_ANNOTATION = (
    "flex.aks.azure.com/cordoned"  # on a Node: its agent cordoned it, for an update, and uncordons it
)
LEFT_ANNOTATION = "flex.aks.azure.com/left"  # on a Node: the last word of a machine that is no longer one
MANAGED_LABEL = {"kubernetes.azure.com/managed": "false"}  # the label that every flex node bears
