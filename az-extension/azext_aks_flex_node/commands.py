"""What all commands have in common: a context that knows its service, and errors that say what to do."""

from __future__ import annotations

from typing import Any

from azure.cli.core.aaz import AAZCommand

from azext_aks_flex_node.refusals import explained
from azext_aks_flex_node.services import Context

Document = dict[str, Any]


class FlexNodeCommand(AAZCommand):
    ctx: Context

    def _handler(self, command_args: Document) -> Any:
        self.ctx = self.made_context(command_args)
        with explained(self.ctx):
            return self.execute()

    def made_context(self, command_args: Document) -> Context:
        ctx = Context(cli_ctx=self.cli_ctx, schema=self.get_arguments_schema(), command_args=command_args)
        ctx.format_args()
        return ctx

    def execute(self) -> Any:
        raise NotImplementedError
