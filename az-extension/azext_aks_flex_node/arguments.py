"""Options of the commands, by group, and their completers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from azure.cli.core.aaz import AAZBoolArg, AAZIntArg, AAZResourceGroupNameArg, AAZStrArg, AAZUndefined
from azure.cli.core.aaz._arg import AAZBaseArg
from azure.cli.core.aaz._arg_action import _ELEMENT_APPEND_KEY, AAZArgAction, AAZArgActionOperations
from azure.cli.core.aaz._field_type import AAZListType, AAZStrType
from azure.cli.core.commands.parameters import get_resource_name_completion_list
from azure.cli.core.decorators import Completer

from azext_aks_flex_node.client import SECTION
from azext_aks_flex_node.secret_input import SECRET_VARIABLE
from azext_aks_flex_node.vendored import node_changes
from azext_aks_flex_node.vendored.node_changes import LISTS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from azext_aks_flex_node.vendored.node_changes import SettingOption

COMPLETION_OPTIONS = ("resource_group", "cluster_name", "rp_endpoint", "rp_audience", "rp_key_file", "rp_ca_file")
POOL_OPTION = "pool_name"


def cluster_completer() -> Completer:
    return get_resource_name_completion_list("Microsoft.ContainerService/managedClusters")


@Completer
def node_completer(cmd: Any, prefix: str, namespace: Any, **_: Any) -> list[str]:
    """Completes node names of the cluster on the command line."""
    from azext_aks_flex_node.aaz.latest.aks.flex_node import List  # noqa: PLC0415 - circular import

    return _names(List(cli_ctx=cmd.cli_ctx), prefix, namespace)


@Completer
def pool_completer(cmd: Any, prefix: str, namespace: Any, **_: Any) -> list[str]:
    """Completes pool names of the cluster on the command line."""
    from azext_aks_flex_node.aaz.latest.aks.flex_node.pool import ListPoolsCommand  # noqa: PLC0415 - circular import

    return _names(ListPoolsCommand(cli_ctx=cmd.cli_ctx), prefix, namespace)


@Completer
def rollout_completer(cmd: Any, prefix: str, namespace: Any, **_: Any) -> list[str]:
    """Completes roll-out names of the pool on the command line."""
    from azext_aks_flex_node.aaz.latest.aks.flex_node.rollout import (  # noqa: PLC0415 - circular import
        ListRolloutsCommand,
    )

    return _names(ListRolloutsCommand(cli_ctx=cmd.cli_ctx), prefix, namespace, POOL_OPTION)


def _names(listing: Any, prefix: str, namespace: Any, *more: str) -> list[str]:
    options = {name: getattr(namespace, name, None) for name in (*COMPLETION_OPTIONS, *more)}
    found = listing(command_args={name: AAZUndefined if value is None else value for name, value in options.items()})
    return [each["name"] for each in found if each["name"].lower().startswith(prefix.lower())]


KINDS: dict[str, type[AAZBaseArg]] = {"number": AAZIntArg, "flag": AAZBoolArg, "switch": AAZBoolArg}
Schema = Any  # AAZArgumentsSchema, whose attributes are the options


class _Untransformed:
    """Uses argparse's default action, because completion cannot read the values of AAZ actions."""

    def _build_cmd_action(self) -> None:
        return None


class PlainArg(_Untransformed, AAZStrArg):
    """A string that completers can read."""


class GroupArg(_Untransformed, AAZResourceGroupNameArg):
    """A resource group name that completers can read."""


class WordsArg(AAZBaseArg, AAZListType):
    """A list of plain strings. AAZ's lists and dictionaries interpret the dots in a label key as a path."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.Element = AAZStrType()

    def to_cmd_arg(self, name: str, **options: Any) -> Any:
        argument = super().to_cmd_arg(name, **options)
        argument.nargs = "+"
        return argument

    def _build_cmd_action(self) -> type[AAZArgAction]:
        class Action(AAZArgAction):
            _schema = self

            @classmethod
            def setup_operations(cls, dest_ops: AAZArgActionOperations, values: list[str], *_: Any) -> None:
                for each in values:
                    dest_ops.add(each, _ELEMENT_APPEND_KEY)

        return Action


def add_options(schema: Schema, group: str, kind: type[AAZBaseArg], texts: dict[str, str]) -> None:
    """Adds options of one kind with their help. The option of `max_pods` is --max-pods."""
    for name, text in texts.items():
        option = kind(options=[f"--{name.replace('_', '-')}"], arg_group=group, help=text)
        setattr(schema, name, option)


def cluster(schema: Schema, *, ids: bool) -> None:
    """Adds the options that identify a cluster, and those of the service."""
    schema.resource_group = GroupArg(required=True)
    schema.cluster_name = PlainArg(
        options=["--cluster-name", "--cluster"],
        help="Name of the AKS cluster.",
        required=True,
        id_part="name" if ids else None,
        completer=cluster_completer(),
    )
    self_hosted(schema)


def node(schema: Schema, *, new: bool = False, ids: bool = True) -> None:
    """Adds the options that identify a node."""
    cluster(schema, ids=ids and not new)
    schema.name = PlainArg(
        options=["-n", "--name", "--node"],
        help="Name of the flex node in the cluster.",
        required=True,
        id_part="child_name_1" if ids and not new else None,
        completer=None if new else node_completer,
    )


def pool(schema: Schema, *, ids: bool = True) -> None:
    """Adds the options that identify a pool."""
    cluster(schema, ids=ids)
    schema.name = PlainArg(
        options=["-n", "--name", "--pool"],
        help="Name of the pool.",
        required=True,
        id_part="child_name_1" if ids else None,
        completer=pool_completer,
    )


def rollout_pool(schema: Schema, *, ids: bool) -> None:
    """Adds the options that identify the pool of a roll-out."""
    cluster(schema, ids=ids)
    schema.pool_name = PlainArg(
        options=["--pool-name", "--pool"],
        help="Name of the pool.",
        required=True,
        id_part="child_name_1" if ids else None,
        completer=pool_completer,
    )


def rollout(schema: Schema, *, new: bool = False) -> None:
    """Adds the options that identify a roll-out."""
    rollout_pool(schema, ids=not new)
    schema.name = PlainArg(
        options=["-n", "--name"],
        help="Name of the roll-out.",
        required=True,
        id_part=None if new else "child_name_2",
        completer=None if new else rollout_completer,
    )


def override_rollout(schema: Schema, text: str) -> None:
    schema.override_rollout = AAZBoolArg(options=["--override-rollout"], help=text)


def replace_machine(schema: Any) -> None:
    schema.replace = AAZBoolArg(options=["--replace"], help="Move the node: another machine may use the URL.")


def self_hosted(schema: Schema) -> None:
    """Adds the options of a self-hosted resource provider."""
    texts = {
        "rp_endpoint": "URL of a self-hosted resource provider, https://HOST:PORT.",
        "rp_audience": "Audience of its tokens, such as api://CLIENT-ID.",
        "rp_key_file": "File with its admin key (mode 0600), instead of `az login`.",
        "rp_ca_file": "Its CA certificate (PEM), if this host does not trust it.",
    }
    defaults = {name: f"{text} Default: `az config set {SECTION}.{name}=…`." for name, text in texts.items()}
    add_options(schema, "Self-hosted Service", PlainArg, defaults)


def add_table(schema: Schema, options: Iterable[SettingOption]) -> None:
    """Adds options of a table."""
    for option in options:
        kind: type[AAZBaseArg] = WordsArg if option.kind in LISTS else KINDS.get(option.kind, AAZStrArg)
        more = {"enum": {each: each for each in option.choices}} if option.choices and kind is AAZStrArg else {}
        default = f" Default: {SECRET_VARIABLE}, or a prompt." if option.kind == "secret" else ""
        flags = [flag for flag in option.flags if f"{flag}s" not in option.flags]  # az takes several values at once
        argument = kind(options=flags, arg_group=option.group, help=option.help + default, **more)
        setattr(schema, option.name, argument)


def setting_options(schema: Schema, *, of_pool: bool = False) -> None:
    """Adds the options of the table of settings. A pool's template has no settings of one machine."""
    add_table(schema, (each for each in node_changes.setting_options() if not (of_pool and each.per_node)))
    schema.file = AAZStrArg(
        options=["--file", "-f"],
        arg_group="Node",
        help="File (JSON or YAML) with all properties of the API. Options override the file.",
    )


def output_config_url(schema: Schema) -> None:
    schema.output_config_url = AAZBoolArg(
        options=["--output-config-url", "--output-url"],
        help="Create and print a configuration URL (properties.configUrl) for one join. It is a secret.",
    )
