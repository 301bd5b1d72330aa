"""The base class of all commands: context with its service, and error handling."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from azure.cli.core.aaz import AAZCommand
from azure.cli.core.azclierror import InvalidArgumentValueError

from azext_aks_flex_node.client import FlexNodeContext
from azext_aks_flex_node.errors import explain_errors

Document = dict[str, Any]
NAMES = {"resource_group": "--resource-group", "cluster_name": "--cluster-name", "name": "--name"}


class FlexNodeCommand(AAZCommand):
    ctx: FlexNodeContext

    def _handler(self, command_args: Document) -> Any:
        self.ctx = self.create_context(command_args)
        with explain_errors(self.ctx):
            return self.execute()

    def create_context(self, command_args: Document) -> FlexNodeContext:
        ctx = FlexNodeContext(cli_ctx=self.cli_ctx, schema=self.get_arguments_schema(), command_args=command_args)
        ctx.format_args()
        _require_names(ctx.options)
        return ctx

    @abstractmethod
    def execute(self) -> Any:
        """What the command does; what it returns is printed."""


def _require_names(args: Document) -> None:
    """In an address, no name and one of dots alone stand for what is above: for all nodes, for the cluster."""
    for dest, option in NAMES.items():
        if dest in args and not args[dest].strip("."):
            raise InvalidArgumentValueError(f"{option}: {args[dest]!r} is no name.", f"Check {option}.")
