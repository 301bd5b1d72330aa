from __future__ import annotations

import time
from typing import Any

from azure.cli.core.aaz import register_command
from azure.cli.core.azclierror import AzureResponseError
from azure.core.exceptions import HttpResponseError, ServiceRequestError, ServiceResponseError
from knack.log import get_logger

from azext_aks_flex_node import arguments, option_values
from azext_aks_flex_node.commands import FlexNodeCommand
from azext_aks_flex_node.tables import rollout_rows
from azext_aks_flex_node.vendored import rollout_summary
from azext_aks_flex_node.vendored.node_summary import printable
from azext_aks_flex_node.vendored.rollout_options import rollout_options, rollout_properties
from azext_aks_flex_node.wait_command import is_temporary

logger = get_logger(__name__)


@register_command("aks flex-node rollout create")
class CreateRollout(FlexNodeCommand):
    r"""Create a roll-out, and wait until it has ended.

    Each change is printed on standard error. The command fails if the roll-out does not succeed.
    The same command again follows the same roll-out. With --no-wait, it ends at once.

    :example: Roll out the newest revision of a pool
        az aks flex-node rollout create -g my-rg --cluster my-cluster --pool edge --name may --no-wait
    :example: Roll out in three waves, with one node of a site at a time, and watch each wave for 30 minutes
        az aks flex-node rollout create -g my-rg --cluster my-cluster --pool edge --name may \
        --waves 1 25% 100% --canary canary=true --failure-domain site --soak 30m --no-wait
    :example: Check each wave with the gates of a file, and keep what nodes have after a failure
        az aks flex-node rollout create -g my-rg --cluster my-cluster --pool edge --name may \
        --gates-file gates.yaml --on-failure halt --no-wait
    """

    AZ_SUPPORT_NO_WAIT = True
    ROWS = rollout_rows

    OPTIONS = (*arguments.rollout(new=True), *arguments.table(rollout_options()))

    def execute(self) -> Any:
        args = self.ctx.options
        options = option_values.given_options(args, rollout_options())
        body = {"properties": rollout_properties(options, option_values.read_value)}
        made = self.rollout(method="PUT", body=body)
        if args.get("no_wait"):
            return made
        made = rollout_summary.follow(made, self._read, _print_line, time.sleep)
        if made["properties"]["state"] != rollout_summary.SUCCEEDED:
            raise AzureResponseError(
                f"{rollout_summary.end_text(made)}.",
                "See the gates with `az aks flex-node rollout show`, and the failed nodes with "
                "`az aks flex-node rollout list-nodes --state Failed`.",
            )
        return made

    def _read(self, is_patient: bool) -> dict[str, Any] | None:
        try:
            return dict(self.rollout())
        except (ServiceRequestError, ServiceResponseError, HttpResponseError) as error:
            if is_patient and is_temporary(error):
                return None
            raise


def _print_line(text: str) -> None:
    logger.warning("%s %s", time.strftime("%H:%M:%S"), printable(text))
