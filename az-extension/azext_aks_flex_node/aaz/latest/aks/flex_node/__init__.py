"""Commands of `az aks flex-node`, in the package that the AAZ loader expects."""

from .__cmd_group import FlexNodeGroup
from ._create import Create
from ._delete import Delete
from ._join_command import JoinCommand
from ._list import List
from ._regenerate_token import RegenerateTokenOfNode
from ._release import Release
from ._revoke_key import RevokeKeyOfNode
from ._show import Show
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
