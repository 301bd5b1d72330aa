"""Options of the commands, by group, and their completers."""

from __future__ import annotations

from typing import Any

from azure.cli.core.aaz import AAZBoolArg, AAZIntArg, AAZResourceGroupNameArg, AAZStrArg, AAZUndefined
from azure.cli.core.aaz._arg import AAZBaseArg
from azure.cli.core.aaz._arg_action import _ELEMENT_APPEND_KEY, AAZArgAction, AAZArgActionOperations
from azure.cli.core.aaz._field_type import AAZListType, AAZStrType
from azure.cli.core.commands.parameters import get_resource_name_completion_list
from azure.cli.core.decorators import Completer

from azext_aks_flex_node.client import SECTION
from azext_aks_flex_node.secret_input import SECRET_VARIABLE
from azext_aks_flex_node.vendored.node_changes import (
    ARC,
    BOOTSTRAP_TOKEN,
    IDENTITIES,
    KUBERNETES_AUTH_METHODS,
    MANAGED_IDENTITY,
)

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


Schema = Any  # AAZArgumentsSchema, whose attributes are the options
COMPONENTS = {
    "kubernetes": "Kubernetes version, for example 1.36.3. Not newer than the cluster. '' resets it, also below.",
    "containerd": "containerd version.",
    "runc": "runc version.",
    "cni": "CNI plugins version.",
    "npd": "node-problem-detector version.",
    "agent": "Agent version (managed nodes). '' removes it: the installed one runs.",
}


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


def template_options(schema: Schema) -> None:
    """Adds the options of a pool's template, which has no identity of its own."""
    schema.auth_method = AAZStrArg(
        options=["--auth-method"],
        arg_group="Identity",
        enum={each: each for each in (BOOTSTRAP_TOKEN, MANAGED_IDENTITY, ARC)},
        help="Azure identity of the agents. Each node has its own.",
    )
    versions(schema)
    settings(schema)
    management(schema)


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


def identity(schema: Schema) -> None:
    """Adds the options of the node's identity."""
    group = "Identity"
    schema.auth_method = AAZStrArg(
        options=["--auth-method"],
        arg_group=group,
        enum={each: each for each in (BOOTSTRAP_TOKEN, *IDENTITIES)},
        help="Authentication method. bootstrapToken: a token only for the join. The other methods are the Azure "
        "identity of the agent.",
    )
    schema.client_id = AAZStrArg(
        options=["--client-id"], arg_group=group, help="Client ID of a service principal or managed identity."
    )
    schema.client_secret_file = AAZStrArg(
        options=["--client-secret-file"],
        arg_group=group,
        help=f"File with the client secret (mode 0600), `-` for standard input. Default: {SECRET_VARIABLE}, or a "
        "prompt.",
    )
    schema.certificate_on_machine = AAZBoolArg(
        options=["--certificate-on-machine", "--cert-on-machine"],
        arg_group=group,
        help="The service principal uses a certificate on the machine.",
    )
    schema.client_tenant = AAZStrArg(
        options=["--client-tenant"], arg_group=group, help="Tenant of the identity. Default: tenant of the cluster."
    )
    schema.principal_id = AAZStrArg(
        options=["--principal-id"], arg_group=group, help="Object ID of a managed identity or Arc machine."
    )
    schema.kubernetes_auth = AAZStrArg(
        options=["--kubernetes-auth"],
        arg_group=group,
        enum={each: each for each in KUBERNETES_AUTH_METHODS},
        help="Authentication of the kubelet: bootstrapToken (default), certificate (the identity only for the "
        "first certificate) or exec (the identity for every request, only for owners, outside the cluster's "
        "restrictions for nodes).",
    )


def versions(schema: Schema) -> None:
    """Adds the version options of the components."""
    add_options(schema, "Versions", AAZStrArg, {f"{name}_version": text for name, text in COMPONENTS.items()})


def settings(schema: Schema) -> None:
    """Adds the options of the node configuration."""
    group = "Node"
    schema.max_pods = AAZIntArg(options=["--max-pods"], arg_group=group, help="Maximum number of pods.")
    lists = {
        "labels": "Space-separated labels: KEY=VALUE sets, KEY- removes a label. Other labels are kept.",
        "taints": "Space-separated taints: KEY=VALUE:EFFECT or KEY:EFFECT sets, KEY:EFFECT- removes. Others are "
        "kept.",
        "kubelet_settings": "Space-separated kubelet settings, for example kubeReserved.cpu=100m: KEY=VALUE sets, "
        "KEY- removes. Others are kept.",
    }
    add_options(schema, group, WordsArg, lists)
    texts = {
        "kubelet_config": "File (JSON or YAML) with all kubelet settings (nodeConfig.kubelet of the API).",
        "server_url": 'API server URL for this node. "" resets it to the URL of the cluster.',
    }
    add_options(schema, group, AAZStrArg, texts)
    schema.vpn = AAZBoolArg(
        options=["--vpn"], arg_group=group, help="Connect through a VPN. Configure it with --file."
    )
    schema.file = AAZStrArg(
        options=["--file", "-f"],
        arg_group=group,
        help="File (JSON or YAML) with all properties of the API. Options override the file.",
    )


def management(schema: Schema) -> None:
    """Adds the options of managed nodes."""
    group = "Management"
    schema.continuous_monitoring = AAZBoolArg(
        options=["--continuous-monitoring", "--monitor"],
        arg_group=group,
        help="Managed node: the daemon applies changes and reports the status. Requires an identity.",
    )
    schema.drift_policy = AAZStrArg(
        options=["--drift-policy"],
        arg_group=group,
        enum={"log": "log", "repair": "repair"},
        help="Action on drift: report it (log), or also repair it (repair).",
    )
    flags = {
        "pause": "Pause changes on the machine.",
        "drain": "Drain the node before an update that stops its pods.",
    }
    add_options(schema, group, AAZBoolArg, flags)
    numbers = {
        "drain_timeout": "Time limit of a drain in seconds.",
        "health_timeout": "Time in seconds in which an updated node must become healthy.",
        "window_minutes": "Maintenance window: its duration in minutes, 15 to 1440.",
    }
    add_options(schema, group, AAZIntArg, numbers)
    texts = {
        "window_start": 'Maintenance window: its start, HH:MM. "" removes the window.',
        "window_time_zone": "Maintenance window: its time zone, for example Europe/Berlin.",
    }
    add_options(schema, group, AAZStrArg, texts)
    days = "Maintenance window: space-separated weekdays, or daily (default)."
    add_options(schema, group, WordsArg, {"window_days": days})


def node_options(schema: Schema) -> None:
    """Adds the options that `create` and `update` share."""
    schema.pool = AAZStrArg(
        options=["--pool"],
        arg_group="Node",
        help='Pool of the node. It gets the settings that it does not set itself. "" removes it from its pool.',
    )
    identity(schema)
    versions(schema)
    settings(schema)
    management(schema)
    schema.output_config_url = AAZBoolArg(
        options=["--output-config-url", "--output-url"],
        help="Create and print a configuration URL (properties.configUrl) for one join. It is a secret.",
    )
