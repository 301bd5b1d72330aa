"""What agent and service put on a Node to tell each other, or everybody, what it is."""

from __future__ import annotations

CORDONED = "flex.aks.azure.com/cordoned"  # on a Node: its agent cordoned it, for an update, and uncordons it
LEFT = "flex.aks.azure.com/left"  # on a Node: the last word of a machine that is no longer one
MANAGED = {"kubernetes.azure.com/managed": "false"}  # the label that every flex node bears
