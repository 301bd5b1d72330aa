"""Base class of all commands: options, table, context, pages and errors."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

from azure.cli.core.aaz import AAZCommand
from azure.cli.core.azclierror import InvalidArgumentValueError

from azext_aks_flex_node.client import FlexNodeContext
from azext_aks_flex_node.errors import explain_errors
from azext_aks_flex_node.operations import ServiceRequest

if TYPE_CHECKING:
    from collections.abc import Callable

    from azext_aks_flex_node.arguments import Options

Document = dict[str, Any]
PAGE = "1000"
NAMES = {
    "resource_group": "--resource-group",
    "cluster_name": "--cluster-name",
    "pool_name": "--pool",
    "name": "--name",
}


class FlexNodeCommand(AAZCommand):
    """A command with a service endpoint and explained errors."""

    OPTIONS: ClassVar[Options] = ()
    ROWS: ClassVar[Callable[[Any], Any] | None] = None  # of the result, for `--output table`
    ctx: FlexNodeContext

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, table_transformer=type(self).ROWS, **kwargs)

    @classmethod
    def _build_arguments_schema(cls, *args: Any, **kwargs: Any) -> Any:
        schema = super()._build_arguments_schema(*args, **kwargs)
        for add in cls.OPTIONS:
            add(schema)
        return schema

    def _handler(self, command_args: Document) -> Any:
        self.ctx = self.create_context(command_args)
        with explain_errors(self.ctx):
            return self.execute()

    def create_context(self, command_args: Document) -> FlexNodeContext:
        """Parses and validates the arguments."""
        ctx = FlexNodeContext(cli_ctx=self.cli_ctx, schema=self.get_arguments_schema(), command_args=command_args)
        ctx.format_args()
        # An empty name, or one of dots, would refer to the parent resource in a URL path.
        for dest, option in NAMES.items():
            if dest in ctx.options and not ctx.options[dest].strip("."):
                name = ctx.options[dest]
                raise InvalidArgumentValueError(f"{option}: {name!r} is not a valid name.", f"Check {option}.")
        return ctx

    @abstractmethod
    def execute(self) -> Any:
        """Runs the command and returns the result to print."""

    def node(self, *below: str, **request: Any) -> Any:
        """Sends a request about the node of the command, or its action `below`."""
        return ServiceRequest(self.ctx, "flexNodeConfig", self.ctx.options["name"], *below, **request)()

    def pool(self, *below: str, **request: Any) -> Any:
        """Sends a request about the pool of the command, or what is `below` it."""
        return ServiceRequest(self.ctx, "flexNodePools", self.ctx.options["name"], *below, **request)()

    def rollout(self, *below: str, **request: Any) -> Any:
        """Sends a request about the roll-out of the command, or its action `below`."""
        pool, name = self.ctx.options["pool_name"], self.ctx.options["name"]
        return ServiceRequest(self.ctx, "flexNodePools", pool, "rollouts", name, *below, **request)()

    def pages(self, *path: str, filter_text: str = "") -> list[Document]:
        """Reads all pages of a list below the cluster."""
        query = {"$top": PAGE, **({"$filter": filter_text} if filter_text else {})}
        listing = ServiceRequest(self.ctx, *path, query=query)
        page: Document = {}

        def fetch_page() -> None:
            page.clear()
            page.update(listing())

        return list(self.build_paging(fetch_page, lambda: (page["value"], page.get("nextLink"))))
