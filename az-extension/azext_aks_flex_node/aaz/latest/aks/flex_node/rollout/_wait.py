from __future__ import annotations

import time
from typing import Any

from azure.cli.core.aaz import AAZBoolArg, register_command
from azure.cli.core.azclierror import AzureResponseError
from knack.log import get_logger

from azext_aks_flex_node import arguments
from azext_aks_flex_node.vendored.rollout_summary import SUCCEEDED, end_text, has_ended, progress_text
from azext_aks_flex_node.wait_command import WaitCommand

logger = get_logger(__name__)


@register_command("aks flex-node rollout wait")
class WaitForRollout(WaitCommand):
    r"""Wait until a roll-out meets a condition.

    The condition is one of --succeeded, --created, --updated, --deleted, --exists and --custom.

    :example: Wait until a roll-out has succeeded, and fail if it ends otherwise
        az aks flex-node rollout wait -g my-rg --cluster my-cluster --pool edge --name may --succeeded --timeout 7200
    :example: Wait until a roll-out waits for an approval
        az aks flex-node rollout wait -g my-rg --cluster my-cluster --pool edge --name may \
        --custom "properties.gateResults[?gate=='manager' && state=='Running'] | [0]"
    """

    OPTIONS = (
        *arguments.rollout(),
        arguments.option(
            AAZBoolArg, "succeeded", "Wait until the roll-out has succeeded.", arg_group="Wait Condition"
        ),
    )
    OPTION = "succeeded"
    QUERY = f"properties.state=='{SUCCEEDED}'"
    _line = ""

    def read(self) -> dict[str, Any]:
        return dict(self.rollout())

    def check(self, found: dict[str, Any]) -> None:
        """Prints each change. Fails when the roll-out has ended otherwise."""
        line = progress_text(found["properties"])
        if line != self._line:
            logger.warning("%s %s", time.strftime("%H:%M:%S"), line)
            self._line = line
        if self.waits_for_own and has_ended(found) and found["properties"]["state"] != SUCCEEDED:
            raise AzureResponseError(
                f"{end_text(found)}.",
                "See the failed nodes with `az aks flex-node rollout list-nodes --state Failed`.",
            )

    def advice(self, found: dict[str, Any]) -> str:
        return progress_text(found["properties"])
