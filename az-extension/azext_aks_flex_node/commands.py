"""Base class of all commands: creates the context and handles errors."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from azure.cli.core.aaz import AAZCommand
from azure.cli.core.azclierror import InvalidArgumentValueError

from azext_aks_flex_node.client import FlexNodeContext
from azext_aks_flex_node.errors import explain_errors

Document = dict[str, Any]
NAMES = {
    "resource_group": "--resource-group",
    "cluster_name": "--cluster-name",
    "pool_name": "--pool",
    "name": "--name",
}


class FlexNodeCommand(AAZCommand):
    """A command with a service endpoint and explained errors."""

    ctx: FlexNodeContext

    def _handler(self, command_args: Document) -> Any:
        self.ctx = self.create_context(command_args)
        with explain_errors(self.ctx):
            return self.execute()

    def create_context(self, command_args: Document) -> FlexNodeContext:
        """Parses and validates the arguments."""
        ctx = FlexNodeContext(cli_ctx=self.cli_ctx, schema=self.get_arguments_schema(), command_args=command_args)
        ctx.format_args()
        _require_names(ctx.options)
        return ctx

    @abstractmethod
    def execute(self) -> Any:
        """Runs the command and returns the result to print."""


def _require_names(args: Document) -> None:
    """Rejects empty names and names of dots, which would refer to the parent resource in a URL path."""
    for dest, option in NAMES.items():
        if dest in args and not args[dest].strip("."):
            raise InvalidArgumentValueError(f"{option}: {args[dest]!r} is not a valid name.", f"Check {option}.")
