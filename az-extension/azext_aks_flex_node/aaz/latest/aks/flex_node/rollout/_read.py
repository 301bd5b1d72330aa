from __future__ import annotations

from typing import Any

from azure.cli.core.aaz import AAZIntArg, AAZStrArg, register_command

from azext_aks_flex_node import arguments
from azext_aks_flex_node.commands import FlexNodeCommand
from azext_aks_flex_node.rollout_operations import ActOnRollout, GetRollout, ListRollouts
from azext_aks_flex_node.tables import rollout_node_rows, rollout_rows
from azext_aks_flex_node.vendored.rollout_options import NODE_STATES


@register_command("aks flex-node rollout show")
class ShowRollout(FlexNodeCommand):
    """Show a roll-out: its state, waves, and what the gates said.

    :example: Show a roll-out
        az aks flex-node rollout show -g my-rg --cluster my-cluster --pool edge --name may
    :example: Show what a roll-out waits for
        az aks flex-node rollout show -g my-rg --cluster my-cluster --pool edge --name may --query properties.waitsFor
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, table_transformer=rollout_rows, **kwargs)

    @classmethod
    def _build_arguments_schema(cls, *args: Any, **kwargs: Any) -> Any:
        schema = super()._build_arguments_schema(*args, **kwargs)
        arguments.rollout(schema)
        return schema

    def execute(self) -> Any:
        return GetRollout(self.ctx)()


@register_command("aks flex-node rollout list")
class ListRolloutsCommand(FlexNodeCommand):
    """List the roll-outs of a pool, the newest first.

    :example: List roll-outs as a table
        az aks flex-node rollout list -g my-rg --cluster my-cluster --pool edge -o table
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, table_transformer=rollout_rows, **kwargs)

    @classmethod
    def _build_arguments_schema(cls, *args: Any, **kwargs: Any) -> Any:
        schema = super()._build_arguments_schema(*args, **kwargs)
        arguments.rollout_pool(schema, ids=False)
        return schema

    def execute(self) -> Any:
        page: dict[str, Any] = {}
        listing = ListRollouts(self.ctx)

        def fetch_page() -> None:
            page.clear()
            page.update(listing())

        return list(self.build_paging(fetch_page, lambda: (page["value"], page.get("nextLink"))))


@register_command("aks flex-node rollout list-nodes")
class ListRolloutNodes(FlexNodeCommand):
    r"""List the nodes of a roll-out with their states.

    :example: List the failed nodes with their cause
        az aks flex-node rollout list-nodes -g my-rg --cluster my-cluster --pool edge --name may \
        --state Failed -o table
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, table_transformer=rollout_node_rows, **kwargs)

    @classmethod
    def _build_arguments_schema(cls, *args: Any, **kwargs: Any) -> Any:
        schema = super()._build_arguments_schema(*args, **kwargs)
        arguments.rollout(schema)
        schema.state = AAZStrArg(
            options=["--state"], enum={each: each for each in NODE_STATES}, help="Only nodes in this state."
        )
        schema.wave = AAZIntArg(options=["--wave"], help="Only nodes of this wave.")
        return schema

    def execute(self) -> Any:
        args = self.ctx.options
        body = {name: args[name] for name in ("state", "wave") if args.get(name)}
        found: list[Any] = []
        while True:
            page = ActOnRollout(self.ctx, "listNodes", body)()
            found += page["value"]
            if not page.get("after"):
                return found
            body["after"] = page["after"]
