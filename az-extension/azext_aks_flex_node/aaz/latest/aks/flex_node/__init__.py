"""Commands of `az aks flex-node`, in the package that the AAZ loader expects."""

from .__cmd_group import FlexNodeGroup
from ._actions import Delete, JoinCommand, RegenerateTokenOfNode, Release, RevokeKeyOfNode
from ._create import Create
from ._read import List, Show
from ._update import Update
from ._wait import Wait

__all__ = [
    "Create",
    "Delete",
    "FlexNodeGroup",
    "JoinCommand",
    "List",
    "RegenerateTokenOfNode",
    "Release",
    "RevokeKeyOfNode",
    "Show",
    "Update",
    "Wait",
]
