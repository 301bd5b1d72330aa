"""Base class of all commands: options, table, context, pages and errors."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

from azure.cli.core.aaz import AAZCommand
from azure.cli.core.azclierror import InvalidArgumentValueError

from azext_aks_flex_node.client import FlexNodeContext
from azext_aks_flex_node.errors import explain_errors

if TYPE_CHECKING:
    from collections.abc import Callable

    from azext_aks_flex_node.operations import ListNodes

Document = dict[str, Any]
NAMES = {
    "resource_group": "--resource-group",
    "cluster_name": "--cluster-name",
    "pool_name": "--pool",
    "name": "--name",
}


class FlexNodeCommand(AAZCommand):
    """A command with a service endpoint and explained errors."""

    ROWS: ClassVar[Callable[[Any], Any] | None] = None  # of the result, for `--output table`
    ctx: FlexNodeContext

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, table_transformer=type(self).ROWS, **kwargs)

    @classmethod
    def _build_arguments_schema(cls, *args: Any, **kwargs: Any) -> Any:
        schema = super()._build_arguments_schema(*args, **kwargs)
        cls.add_arguments(schema)
        return schema

    @classmethod
    @abstractmethod
    def add_arguments(cls, schema: Any) -> None:
        """Adds the options of the command."""

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

    def pages(self, listing: ListNodes) -> list[Document]:
        """Reads all pages of a list."""
        page: Document = {}

        def fetch_page() -> None:
            page.clear()
            page.update(listing())

        return list(self.build_paging(fetch_page, lambda: (page["value"], page.get("nextLink"))))


def _require_names(args: Document) -> None:
    """Rejects empty names and names of dots, which would refer to the parent resource in a URL path."""
    for dest, option in NAMES.items():
        if dest in args and not args[dest].strip("."):
            raise InvalidArgumentValueError(f"{option}: {args[dest]!r} is not a valid name.", f"Check {option}.")
