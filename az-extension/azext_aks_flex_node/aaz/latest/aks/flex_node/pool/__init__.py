"""Commands of `az aks flex-node pool`, in the package that the AAZ loader expects."""

from .__cmd_group import FlexNodePoolGroup
from ._apply import AllowRevisionOfPool, Apply
from ._read import ListPoolsCommand, ListRevisionsCommand, ShowPool
from ._write import CreatePool, DeletePoolCommand, UpdatePool

__all__ = [
    "AllowRevisionOfPool",
    "Apply",
    "CreatePool",
    "DeletePoolCommand",
    "FlexNodePoolGroup",
    "ListPoolsCommand",
    "ListRevisionsCommand",
    "ShowPool",
    "UpdatePool",
]
