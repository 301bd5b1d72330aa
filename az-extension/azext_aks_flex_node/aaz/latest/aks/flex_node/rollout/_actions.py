from __future__ import annotations

from typing import Any

from azure.cli.core.aaz import register_command
from knack.log import get_logger

from azext_aks_flex_node import arguments
from azext_aks_flex_node.commands import FlexNodeCommand
from azext_aks_flex_node.tables import rollout_rows

logger = get_logger(__name__)


class _Action(FlexNodeCommand):
    """A command that changes a roll-out, and returns it."""

    ACTION = ""
    ROWS = rollout_rows

    OPTIONS = arguments.rollout()

    def execute(self) -> Any:
        return self.rollout(self.ACTION, body={})


@register_command("aks flex-node rollout pause")
class PauseRollout(_Action):
    """Pause a roll-out. Nodes that are being updated finish, and no other one starts.

    :example: Pause a roll-out
        az aks flex-node rollout pause -g my-rg --cluster my-cluster --pool edge --name may
    """

    ACTION = "pause"


@register_command("aks flex-node rollout resume")
class ResumeRollout(_Action):
    """Continue a paused roll-out.

    :example: Continue a roll-out
        az aks flex-node rollout resume -g my-rg --cluster my-cluster --pool edge --name may
    """

    ACTION = "resume"


@register_command("aks flex-node rollout abort")
class AbortRollout(_Action):
    """End a roll-out. Nodes keep what they have.

    :example: End a roll-out
        az aks flex-node rollout abort -g my-rg --cluster my-cluster --pool edge --name may
    """

    ACTION = "abort"


@register_command("aks flex-node rollout reverse")
class ReverseRollout(_Action):
    """Bring the nodes of a roll-out back to the revision before, in the same waves.

    :example: Bring the nodes back
        az aks flex-node rollout reverse -g my-rg --cluster my-cluster --pool edge --name may
    """

    ACTION = "reverse"


@register_command("aks flex-node rollout approve")
class ApproveRollout(_Action):
    """Approve the next wave of a roll-out that waits for it.

    :example: Approve the next wave
        az aks flex-node rollout approve -g my-rg --cluster my-cluster --pool edge --name may --gate manager
    """

    OPTIONS = (
        *arguments.rollout(),
        arguments.option(
            arguments.PlainArg, "gate", "Name of the gate. Default: the one that waits for an approval."
        ),
    )

    def execute(self) -> Any:
        gate = self.ctx.options.get("gate")
        return self.rollout("approve", body={"gate": gate} if gate else {})


@register_command("aks flex-node rollout delete", confirmation="Delete the record of this roll-out?")
class DeleteRolloutCommand(FlexNodeCommand):
    """Delete a roll-out that has ended, with its record. Barred revisions stay barred.

    :example: Delete a roll-out without confirmation
        az aks flex-node rollout delete -g my-rg --cluster my-cluster --pool edge --name may --yes
    """

    OPTIONS = arguments.rollout()

    def execute(self) -> None:
        if self.rollout(method="DELETE") is None:
            logger.warning("The roll-out %s was not found.", self.ctx.options["name"])
