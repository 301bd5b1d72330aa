"""The commands, where az's loader looks for them."""

from .__cmd_group import FlexNodeGroup
from ._create import Create
from ._delete import Delete
from ._join_command import JoinCommand
from ._list import List
from ._regenerate_token import RegenerateTokenOfNode
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
    "Show",
    "Update",
    "Wait",
]
