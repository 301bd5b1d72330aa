"""The options of the commands, by group, and their completers."""

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
from azext_aks_flex_node.vendored.node_changes import BOOTSTRAP_TOKEN, IDENTITIES, KUBERNETES_AUTH_METHODS

COMPLETION_OPTIONS = ("resource_group", "cluster_name", "rp_endpoint", "rp_key_file", "rp_ca_file")


def cluster_completer() -> Completer:
    return get_resource_name_completion_list("Microsoft.ContainerService/managedClusters")


@Completer
def node_completer(cmd: Any, prefix: str, namespace: Any, **_: Any) -> list[str]:
    """Those of the cluster that was named before."""
    from azext_aks_flex_node.aaz.latest.aks.flex_node import List  # noqa: PLC0415 - which itself offers this

    options = {name: getattr(namespace, name, None) for name in COMPLETION_OPTIONS}
    found = List(cli_ctx=cmd.cli_ctx)(
        command_args={name: AAZUndefined if value is None else value for name, value in options.items()}
    )
    return [each["name"] for each in found if each["name"].lower().startswith(prefix.lower())]


Schema = Any  # AAZArgumentsSchema, whose options are its attributes
COMPONENTS = {
    "kubernetes": "Kubernetes, such as 1.34.4: never newer than the cluster's.",
    "containerd": "containerd.",
    "runc": "runc.",
    "cni": "The CNI plugins.",
    "npd": "node-problem-detector.",
    "agent": "The agent itself, where it stays.",
}


class _Untransformed:
    """A word as it is typed. What reads it is argparse's own, since Tab knows nothing of what another has read."""

    def _build_cmd_action(self) -> None:
        return None


class PlainArg(_Untransformed, AAZStrArg):
    pass


class GroupArg(_Untransformed, AAZResourceGroupNameArg):
    pass


class WordsArg(AAZBaseArg, AAZListType):
    """Words as they are typed. AAZ's own lists and dictionaries take the dots in a label's key for a path."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.Element = AAZStrType()

    def to_cmd_arg(self, name: str, **options: Any) -> Any:
        made = super().to_cmd_arg(name, **options)
        made.nargs = "+"
        return made

    def _build_cmd_action(self) -> type[AAZArgAction]:
        class Action(AAZArgAction):
            _schema = self

            @classmethod
            def setup_operations(cls, dest_ops: AAZArgActionOperations, values: list[str], *_: Any) -> None:
                for each in values:
                    dest_ops.add(each, _ELEMENT_APPEND_KEY)

        return Action


def cluster(schema: Schema, *, ids: bool) -> None:
    schema.resource_group = GroupArg(required=True)
    schema.cluster_name = PlainArg(
        options=["--cluster-name", "--cluster"],
        help="Name of the AKS cluster.",
        required=True,
        id_part="name" if ids else None,
        completer=cluster_completer(),
    )


def node(schema: Schema, *, new: bool = False, ids: bool = True) -> None:
    cluster(schema, ids=ids and not new)
    schema.name = PlainArg(
        options=["-n", "--name", "--node"],
        help="Name of the flex node; the machine's name in the cluster.",
        required=True,
        id_part="child_name_1" if ids and not new else None,
        completer=None if new else node_completer,
    )


def self_hosted(schema: Schema) -> None:
    where = f"Else `az config set {SECTION}"
    group = "Self-hosted Service"
    schema.rp_endpoint = PlainArg(
        options=["--rp-endpoint"],
        arg_group=group,
        help=f"A resource provider to ask in place of Azure, https://host:port. {where}.rp_endpoint=…`.",
    )
    schema.rp_key_file = PlainArg(
        options=["--rp-key-file"],
        arg_group=group,
        help=f"File with its admin key, in place of az's sign-in; mode 0600. {where}.rp_key_file=…`.",
    )
    schema.rp_ca_file = PlainArg(
        options=["--rp-ca-file"],
        arg_group=group,
        help=f"Its CA certificate (PEM), unless this machine trusts it. {where}.rp_ca_file=…`.",
    )


def identity(schema: Schema) -> None:
    group = "Identity"
    schema.auth_method = AAZStrArg(
        options=["--auth-method"],
        arg_group=group,
        enum={each: each for each in (BOOTSTRAP_TOKEN, *IDENTITIES)},
        help="bootstrapToken: a token for the join and nothing after it. The others are the identity by which the "
        "agent speaks to Azure.",
    )
    schema.client_id = AAZStrArg(
        options=["--client-id"], arg_group=group, help="Client id of a service principal or of a managed identity."
    )
    schema.client_secret_file = AAZStrArg(
        options=["--client-secret-file"],
        arg_group=group,
        help=f"File with the service principal's secret, mode 0600; `-` for standard input. Else {SECRET_VARIABLE}, "
        "else you are asked.",
    )
    schema.certificate_on_machine = AAZBoolArg(
        options=["--certificate-on-machine", "--cert-on-machine"],
        arg_group=group,
        help="It has no secret, but a certificate that is on the machine already.",
    )
    schema.client_tenant = AAZStrArg(
        options=["--client-tenant"], arg_group=group, help="Its tenant; the cluster's when left out."
    )
    schema.principal_id = AAZStrArg(
        options=["--principal-id"], arg_group=group, help="Object id, of a managed identity or of an Arc machine."
    )
    schema.kubernetes_auth = AAZStrArg(
        options=["--kubernetes-auth"],
        arg_group=group,
        enum={each: each for each in KUBERNETES_AUTH_METHODS},
        help="How the kubelet joins: by a bootstrapToken (as when left out); or by the identity, which it shows at "
        "every call (exec), or until it has a certificate of its own (certificate, which is safer).",
    )


def versions(schema: Schema) -> None:
    for name, what in COMPONENTS.items():
        option = AAZStrArg(options=[f"--{name}-version"], arg_group="Versions", help=what)
        setattr(schema, f"{name}_version", option)


def settings(schema: Schema) -> None:
    schema.max_pods = AAZIntArg(options=["--max-pods"], arg_group="Node", help="How many pods it may run.")
    schema.labels = WordsArg(
        options=["--labels"],
        arg_group="Node",
        help="Labels, KEY=VALUE, separated by spaces. Others stay as they are; KEY- removes one.",
    )
    schema.taints = WordsArg(
        options=["--taints"],
        arg_group="Node",
        help="Taints, KEY=VALUE:EFFECT or KEY:EFFECT, separated by spaces. Others stay; KEY:EFFECT- removes one.",
    )
    schema.kubelet_config = AAZStrArg(
        options=["--kubelet-config"],
        arg_group="Node",
        help="File (JSON or YAML) with the settings of the kubelet, nodeConfig.kubelet of the API: all of them.",
    )
    schema.server_url = AAZStrArg(
        options=["--server-url"],
        arg_group="Node",
        help='The API server, where this node reaches it at another address; "" for the cluster\'s own.',
    )
    schema.vpn = AAZBoolArg(
        options=["--vpn"], arg_group="Node", help="Reach the cluster through a VPN; how, --file says."
    )
    schema.file = AAZStrArg(
        options=["--file", "-f"],
        arg_group="Node",
        help="File (JSON or YAML) with all properties, as the API has them; what is said beside it is stronger.",
    )


def management(schema: Schema) -> None:
    group = "Following"
    schema.continuous_monitoring = AAZBoolArg(
        options=["--continuous-monitoring", "--monitor"],
        arg_group=group,
        help="The agent stays, follows every change and reports. It needs an identity.",
    )
    schema.drift_policy = AAZStrArg(
        options=["--drift-policy"],
        arg_group=group,
        enum={"log": "log", "repair": "repair"},
        help="About changes made by hand on the machine: say so, or also put them right.",
    )
    schema.pause = AAZBoolArg(
        options=["--pause"], arg_group=group, help="Change nothing on the machine for now: what is new waits."
    )


def node_options(schema: Schema) -> None:
    """What `create` and `update` have in common."""
    identity(schema)
    versions(schema)
    settings(schema)
    management(schema)
    self_hosted(schema)
    schema.output_config_url = AAZBoolArg(
        options=["--output-config-url", "--output-url"],
        help="Answer with properties.configUrl, by which one machine joins, once. It is a secret until then.",
    )
