from __future__ import annotations

from typing import Any

from azure.cli.core.aaz import register_command

from azext_aks_flex_node import arguments
from azext_aks_flex_node.commands import FlexNodeCommand
from azext_aks_flex_node.pool_operations import GetPool, ListPools, ListRevisions
from azext_aks_flex_node.tables import pool_rows, revision_rows


@register_command("aks flex-node pool show")
class ShowPool(FlexNodeCommand):
    """Show a pool: its template, revision and number of nodes.

    :example: Show a pool
        az aks flex-node pool show -g my-rg --cluster my-cluster --name edge
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, table_transformer=pool_rows, **kwargs)

    @classmethod
    def _build_arguments_schema(cls, *args: Any, **kwargs: Any) -> Any:
        schema = super()._build_arguments_schema(*args, **kwargs)
        arguments.pool(schema)
        return schema

    def execute(self) -> Any:
        return GetPool(self.ctx)()


class _Listing(FlexNodeCommand):
    """Reads all pages of a list."""

    def pages(self, listing: ListPools) -> list[dict[str, Any]]:
        page: dict[str, Any] = {}

        def fetch_page() -> None:
            page.clear()
            page.update(listing())

        return list(self.build_paging(fetch_page, lambda: (page["value"], page.get("nextLink"))))


@register_command("aks flex-node pool list")
class ListPoolsCommand(_Listing):
    """List the pools of a cluster.

    :example: List pools as a table
        az aks flex-node pool list -g my-rg --cluster my-cluster -o table
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, table_transformer=pool_rows, **kwargs)

    @classmethod
    def _build_arguments_schema(cls, *args: Any, **kwargs: Any) -> Any:
        schema = super()._build_arguments_schema(*args, **kwargs)
        arguments.cluster(schema, ids=False)
        arguments.self_hosted(schema)
        return schema

    def execute(self) -> Any:
        return self.pages(ListPools(self.ctx))


@register_command("aks flex-node pool list-revisions")
class ListRevisionsCommand(_Listing):
    """List the revisions of a pool's template with their changes, the newest first.

    :example: List revisions as a table
        az aks flex-node pool list-revisions -g my-rg --cluster my-cluster --name edge -o table
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, table_transformer=revision_rows, **kwargs)

    @classmethod
    def _build_arguments_schema(cls, *args: Any, **kwargs: Any) -> Any:
        schema = super()._build_arguments_schema(*args, **kwargs)
        arguments.pool(schema, ids=False)
        return schema

    def execute(self) -> Any:
        return self.pages(ListRevisions(self.ctx))
