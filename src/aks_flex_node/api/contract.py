"""Constants of the contract between agent and resource provider: annotations and labels on Node objects."""

from __future__ import annotations

CORDONED_ANNOTATION = (
    "flex.aks.azure.com/cordoned"  # on a Node: its agent cordoned it, for an update, and uncordons it
)
LEFT_ANNOTATION = "flex.aks.azure.com/left"  # on a Node: the last word of a machine that is no longer one
MANAGED_LABEL = {"kubernetes.azure.com/managed": "false"}  # the label that every flex node bears
