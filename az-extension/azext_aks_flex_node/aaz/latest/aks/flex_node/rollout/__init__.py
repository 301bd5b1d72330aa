"""Commands of `az aks flex-node rollout`, in the package that the AAZ loader expects."""

from .__cmd_group import RolloutGroup
from ._actions import AbortRollout, ApproveRollout, DeleteRolloutCommand, PauseRollout, ResumeRollout, ReverseRollout
from ._create import CreateRollout
from ._read import ListRolloutNodes, ListRolloutsCommand, ShowRollout
from ._wait import WaitForRollout

__all__ = [
    "AbortRollout",
    "ApproveRollout",
    "CreateRollout",
    "DeleteRolloutCommand",
    "ListRolloutNodes",
    "ListRolloutsCommand",
    "PauseRollout",
    "ResumeRollout",
    "ReverseRollout",
    "RolloutGroup",
    "ShowRollout",
    "WaitForRollout",
]
