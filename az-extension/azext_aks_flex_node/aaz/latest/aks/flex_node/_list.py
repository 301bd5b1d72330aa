from __future__ import annotations

from typing import Any

from azure.cli.core.aaz import AAZStrArg, register_command
from azure.cli.core.azclierror import InvalidArgumentValueError

from azext_aks_flex_node import arguments
from azext_aks_flex_node.commands import FlexNodeCommand
from azext_aks_flex_node.operations import ListNodes
from azext_aks_flex_node.tables import table_rows

STATES = ("Created", "ConfigFetched", "BootstrapAttempted", "Joined", "Failed")


@register_command("aks flex-node list")
class List(FlexNodeCommand):
    """List the flex nodes of a cluster.

    :example: As a table: ready, versions wanted and applied, last seen, and why not
        az aks flex-node list -g my-rg --cluster my-cluster -o table
    :example: Those at one site that are not Ready
        az aks flex-node list -g my-rg --cluster my-cluster --ready False --label site=north -o table
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, table_transformer=table_rows, **kwargs)

    @classmethod
    def _build_arguments_schema(cls, *args: Any, **kwargs: Any) -> Any:
        schema = super()._build_arguments_schema(*args, **kwargs)
        arguments.cluster(schema, ids=False)
        group = "Filter"
        schema.ready = AAZStrArg(
            options=["--ready"],
            arg_group=group,
            enum={each: each for each in ("True", "False", "Unknown")},
            help="Only those that are so.",
        )
        schema.join_state = AAZStrArg(
            options=["--join-state"],
            arg_group=group,
            enum={each: each for each in STATES},
            help="Only those that have come so far in joining.",
        )
        schema.kubernetes_version = AAZStrArg(
            options=["--kubernetes-version"], arg_group=group, help="Only those that are to have this version."
        )
        schema.label = arguments.WordsArg(
            options=["--label"], arg_group=group, help="Only those with these labels, KEY=VALUE, separated by spaces."
        )
        arguments.self_hosted(schema)
        return schema

    def execute(self) -> Any:
        listing = ListNodes(self.ctx, filter_text(self.ctx.options))
        page: dict[str, Any] = {}

        def ask() -> None:
            page.clear()
            page.update(listing())

        return list(self.build_paging(ask, lambda: (page["value"], page.get("nextLink"))))


def filter_text(args: dict[str, Any]) -> str:
    filters = {
        "ready": args.get("ready"),
        "joinState": args.get("join_state"),
        "version": args.get("kubernetes_version"),
        **dict(map(_label, args.get("label", ()))),
    }
    return " and ".join(f"{field} eq '{_quoted(value)}'" for field, value in filters.items() if value is not None)


def _quoted(value: str) -> str:
    return value.replace("'", "''")


def _label(word: str) -> tuple[str, str]:
    key, equals, value = word.partition("=")
    if not key or not equals:
        raise InvalidArgumentValueError(f"--label: {word!r} is no label.", "Write KEY=VALUE.")
    return f"labels/{key}", value
