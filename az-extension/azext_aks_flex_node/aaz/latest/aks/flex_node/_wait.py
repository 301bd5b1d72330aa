from __future__ import annotations

import time
from typing import Any

from azure.cli.core.aaz import AAZBoolArg, AAZWaitCommand, register_command
from azure.cli.core.azclierror import AzureResponseError, RequiredArgumentMissingError
from azure.core.exceptions import HttpResponseError, ServiceRequestError, ServiceResponseError
from knack.arguments import CLICommandArgument
from knack.log import get_logger

from azext_aks_flex_node import arguments, tables
from azext_aks_flex_node.commands import FlexNodeCommand
from azext_aks_flex_node.errors import explain_errors
from azext_aks_flex_node.operations import GetNode

READY = "properties.status.conditions[?type=='Ready' && status=='True'] | [0]"
CONDITIONS = ("created", "updated", "deleted", "exists", "custom")
INTERVAL = 5  # seconds; az's default of 30 is too long for a join
MAX_RETRIES = 12  # intervals that the service can be unavailable
logger = get_logger(__name__)


@register_command("aks flex-node wait")
class Wait(AAZWaitCommand, FlexNodeCommand):
    r"""Wait until a flex node meets a condition.

    The condition is one of --ready, --created, --updated, --deleted, --exists and --custom.

    :example: Wait until the node has joined and is Ready
        az aks flex-node wait -g my-rg --cluster my-cluster --name edge-1 --ready --timeout 300
    :example: Wait until the desired configuration is applied
        az aks flex-node wait -g my-rg --cluster my-cluster --name edge-1 \
        --custom "properties.configVersion==properties.status.appliedConfigVersion"
    """

    _answered = False  # whether the service has responded before

    def __init__(self, loader: Any) -> None:
        super().__init__(loader)
        self.arguments["interval"] = CLICommandArgument(
            "interval",
            options_list=["--interval"],
            default=INTERVAL,
            arg_group="Wait Condition",
            type=int,
            help="Polling interval in seconds.",
        )

    def __call__(self, command_args: dict[str, Any]) -> None:
        self.ctx = self.create_context(command_args)
        self._interval = int(command_args["interval"])
        if not self._for_ready and not any(command_args.get(name) for name in CONDITIONS):
            options = ", ".join(f"--{name}" for name in CONDITIONS)
            raise RequiredArgumentMissingError(
                "No condition to wait for.", f"Set one of --ready, {options}, for example --ready --timeout 300."
            )
        if self._for_ready:
            command_args["custom"] = READY
        with explain_errors(self.ctx):
            result = super().__call__(command_args)
        if isinstance(result, Exception):  # az returns the exception on a timeout, instead of raising it
            raise AzureResponseError(str(result), self._advice())

    @property
    def _for_ready(self) -> bool:
        return bool(self.ctx.options.get("ready"))

    def _handler(self, _command_args: dict[str, Any]) -> Any:
        """Polls the node. Stops when the join has failed, because the node cannot become Ready."""
        found = self._found()
        status = found["properties"].get("status", {})
        cause = tables.cause(status)
        if self._for_ready and cause and status.get("joinState") == "Failed":
            raise AzureResponseError(
                f"The flex node {found['name']} could not join: {cause}",
                "Fix the cause, and run the output of `az aks flex-node join-command` on the machine.",
            )
        return found

    def _found(self) -> dict[str, Any]:
        """Reads the node. Retries if the service responded before, for example while it restarts."""
        for _ in range(MAX_RETRIES):
            try:
                found: dict[str, Any] = GetNode(self.ctx)()
            except (ServiceRequestError, ServiceResponseError, HttpResponseError) as error:
                if not self._answered or (isinstance(error, HttpResponseError) and (error.status_code or 0) < 500):
                    raise
                logger.warning("The service does not respond. Retrying in %d s.", self._interval)
                time.sleep(self._interval)
            else:
                self._answered = True
                return found
        return dict(GetNode(self.ctx)())

    def _advice(self) -> str:
        return tables.cause(GetNode(self.ctx)()["properties"].get("status", {}))

    @classmethod
    def _build_arguments_schema(cls, *args: Any, **kwargs: Any) -> Any:
        schema = super()._build_arguments_schema(*args, **kwargs)
        arguments.node(schema)
        schema.ready = AAZBoolArg(
            options=["--ready"], arg_group="Wait Condition", help="Wait until the node is Ready."
        )
        arguments.self_hosted(schema)
        return schema
