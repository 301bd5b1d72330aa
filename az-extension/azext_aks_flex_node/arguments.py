"""Options of the commands, by group, and their completers."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
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


def _completer(what: str, command: str, *more: str) -> Completer:
    """Returns what completes the names that a list command returns, in the group of commands `what`."""

    def complete(cmd: Any, prefix: str, namespace: Any, **_: Any) -> list[str]:
        listing = getattr(import_module(f"azext_aks_flex_node.aaz.latest.aks.flex_node{what}"), command)
        options = {name: getattr(namespace, name, None) for name in (*COMPLETION_OPTIONS, *more)}
        given = {name: AAZUndefined if value is None else value for name, value in options.items()}
        found = listing(cli_ctx=cmd.cli_ctx)(command_args=given)
        return [each["name"] for each in found if each["name"].lower().startswith(prefix.lower())]

    return Completer(complete)


node_completer = _completer("", "List")
pool_completer = _completer(".pool", "ListPoolsCommand")
rollout_completer = _completer(".rollout", "ListRolloutsCommand", POOL_OPTION)


KINDS: dict[str, type[AAZBaseArg]] = {"number": AAZIntArg, "flag": AAZBoolArg, "switch": AAZBoolArg}
Schema = Any  # AAZArgumentsSchema, whose attributes are the options
Option = Callable[[Schema], None]  # adds an option
Options = tuple[Option, ...]


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


def option(kind: type[AAZBaseArg], name: str, text: str, *flags: str, **more: Any) -> Option:
    """Returns an option. That of `max_pods` is --max-pods if no flags are given."""

    def add(schema: Schema) -> None:
        names = flags or (f"--{name.replace('_', '-')}",)
        setattr(schema, name, kind(options=[*names], help=text, **more))

    return add


def choice(name: str, text: str, choices: Iterable[str], **more: Any) -> Option:
    return option(AAZStrArg, name, text, enum={each: each for each in choices}, **more)


def cluster(*, ids: bool = False) -> Options:
    """Returns the options that identify a cluster, and those of the service."""
    completer = get_resource_name_completion_list("Microsoft.ContainerService/managedClusters")
    about = {"required": True, "id_part": "name" if ids else None, "completer": completer}
    named = option(PlainArg, "cluster_name", "Name of the AKS cluster.", "--cluster-name", "--cluster", **about)
    return (_resource_group, named, *SELF_HOSTED)


def _resource_group(schema: Schema) -> None:
    schema.resource_group = GroupArg(required=True)


def node(*, new: bool = False, ids: bool = True) -> Options:
    """Returns the options that identify a node."""
    of_ids = ids and not new
    about = {"required": True, "id_part": "child_name_1" if of_ids else None}
    about["completer"] = None if new else node_completer
    text = "Name of the flex node in the cluster."
    return (*cluster(ids=of_ids), option(PlainArg, "name", text, "-n", "--name", "--node", **about))


def pool(name: str = "name", *flags: str, ids: bool = True) -> Options:
    """Returns the options that identify a pool."""
    about = {"required": True, "id_part": "child_name_1" if ids else None, "completer": pool_completer}
    named = option(PlainArg, name, "Name of the pool.", *(flags or ("-n", "--name", "--pool")), **about)
    return (*cluster(ids=ids), named)


def rollout_pool(*, ids: bool = False) -> Options:
    """Returns the options that identify the pool of a roll-out."""
    return pool(POOL_OPTION, "--pool-name", "--pool", ids=ids)


def rollout(*, new: bool = False) -> Options:
    """Returns the options that identify a roll-out."""
    about = {"required": True, "id_part": None if new else "child_name_2"}
    about["completer"] = None if new else rollout_completer
    return (*rollout_pool(ids=not new), option(PlainArg, "name", "Name of the roll-out.", "-n", "--name", **about))


def table(options: Iterable[SettingOption]) -> Options:
    """Returns the options of a table."""
    return tuple(map(_of_table, options))


def _of_table(row: SettingOption) -> Option:
    kind: type[AAZBaseArg] = WordsArg if row.kind in LISTS else KINDS.get(row.kind, AAZStrArg)
    more = {"enum": {each: each for each in row.choices}} if row.choices and kind is AAZStrArg else {}
    default = f" Default: {SECRET_VARIABLE}, or a prompt." if row.kind == "secret" else ""
    flags = [flag for flag in row.flags if f"{flag}s" not in row.flags]  # az takes several values at once
    return option(kind, row.name, row.help + default, *flags, arg_group=row.group, **more)


def settings(*, of_pool: bool = False) -> Options:
    """Returns the options of the table of settings. A pool's template has no settings of one machine."""
    text = f"{'The template' if of_pool else 'All properties'} as JSON or YAML. Options override the file."
    rows = (each for each in node_changes.setting_options() if not (of_pool and each.per_node))
    return (*table(rows), option(AAZStrArg, "file", text, "--file", "-f", arg_group="Node"))


REPLACE = option(AAZBoolArg, "replace", "Move the node: another machine may use the URL.")
OUTPUT_URL = option(
    AAZBoolArg,
    "output_config_url",
    "Create and print a configuration URL (properties.configUrl) for one join. It is a secret.",
    "--output-config-url",
    "--output-url",
)
# Of a self-hosted resource provider.
SELF_HOSTED = tuple(
    option(PlainArg, name, f"{text} Default: `az config set {SECTION}.{name}=…`.", arg_group="Self-hosted Service")
    for name, text in {
        "rp_endpoint": "URL of a self-hosted resource provider, https://HOST:PORT.",
        "rp_audience": "Audience of its tokens, such as api://CLIENT-ID.",
        "rp_key_file": "File with its admin key (mode 0600), instead of `az login`.",
        "rp_ca_file": "Its CA certificate (PEM), if this host does not trust it.",
    }.items()
)
