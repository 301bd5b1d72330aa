"""Base class of the `wait` commands: az's conditions, and one of our own that can become impossible."""

from __future__ import annotations

import time
from abc import abstractmethod
from typing import Any

from azure.cli.core.aaz import AAZWaitCommand
from azure.cli.core.azclierror import AzureResponseError, RequiredArgumentMissingError
from azure.core.exceptions import HttpResponseError, ServiceRequestError, ServiceResponseError
from knack.arguments import CLICommandArgument
from knack.log import get_logger

from azext_aks_flex_node.commands import FlexNodeCommand
from azext_aks_flex_node.errors import explain_errors

CONDITIONS = ("created", "updated", "deleted", "exists", "custom")
INTERVAL = 5  # seconds; az's default of 30 is too long for a join
MAX_RETRIES = 12  # intervals that the service can be unavailable
Document = dict[str, Any]
logger = get_logger(__name__)


def is_temporary(error: Exception) -> bool:
    """Whether the service may answer a little later, for example after a restart."""
    return not isinstance(error, HttpResponseError) or (error.status_code or 0) >= 500


class WaitCommand(AAZWaitCommand, FlexNodeCommand):
    """Polls a resource until a condition is met."""

    OPTION = ""  # of the command's own condition
    QUERY = ""  # that is true when it is met
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
        if not self.waits_for_own and not any(command_args.get(name) for name in CONDITIONS):
            options = ", ".join(f"--{name}" for name in (self.OPTION, *CONDITIONS))
            raise RequiredArgumentMissingError(
                "No condition to wait for.",
                f"Set one of {options}, for example --{self.OPTION} --timeout 300.",
            )
        if self.waits_for_own:
            command_args["custom"] = self.QUERY
        with explain_errors(self.ctx):
            result = super().__call__(command_args)
        if isinstance(result, Exception):  # az returns the exception on a timeout, instead of raising it
            raise AzureResponseError(str(result), self.advice(self.read()))

    @property
    def waits_for_own(self) -> bool:
        return bool(self.ctx.options.get(self.OPTION))

    def _handler(self, _command_args: dict[str, Any]) -> Any:
        found = self._found()
        self.check(found)
        return found

    def _found(self) -> Document:
        """Reads the resource. Retries if the service responded before, for example while it restarts."""
        for _ in range(MAX_RETRIES):
            try:
                found = self.read()
            except (ServiceRequestError, ServiceResponseError, HttpResponseError) as error:
                if not self._answered or not is_temporary(error):
                    raise
                logger.warning("The service does not respond. Retrying in %d s.", self._interval)
                time.sleep(self._interval)
            else:
                self._answered = True
                return found
        return self.read()

    @abstractmethod
    def read(self) -> Document:
        """Reads the resource."""

    @abstractmethod
    def check(self, found: Document) -> None:
        """Raises an error if the command's own condition cannot be met any more."""

    @abstractmethod
    def advice(self, found: Document) -> str:
        """Returns why the condition was not met in time."""
