"""Commands `node create` and `node update`: build a request body from options, and write it with If-Match."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from aks_flex_node.api import node_changes
from aks_flex_node.api.node_changes import BOOTSTRAP_TOKEN, NodeChangeError, NodeOptions, UnusedOptionsError
from aks_flex_node.errors import CommandUsageError, ConfigError
from aks_flex_rp.cli import output
from aks_flex_rp.cli.command_context import (
    ClusterName,
    JsonOption,
    NameOption,
    ServiceOptions,
    read_secret,
    with_service,
)

if TYPE_CHECKING:
    from aks_flex_rp.api_client import ServiceClient
    from aks_flex_rp.arm.ids import ClusterId

    Document = dict[str, Any]

ATTEMPTS = 4  # at a node that others change at the same time


@with_service
def write_node(
    reached: ServiceOptions,
    ctx: typer.Context,
    name: NameOption,
    cluster: ClusterName = "",
    file: Annotated[
        Path | None, typer.Option(help="The whole body as JSON or YAML; what is said beside it is stronger.")
    ] = None,
    auth_method: Annotated[
        str | None,
        typer.Option(help="How the agent signs in to Azure: servicePrincipal, managedIdentity, arc, none."),
    ] = None,
    client_id: Annotated[str | None, typer.Option(help="Client id of that identity.")] = None,
    client_secret_file: Annotated[
        str | None, typer.Option(metavar="FILE", help="File with the service principal's secret; `-` for stdin.")
    ] = None,
    certificate_on_machine: Annotated[
        bool | None,
        typer.Option(
            "--certificate-on-machine", help="It has no secret, but a certificate that is on the machine already."
        ),
    ] = None,
    client_tenant: Annotated[str | None, typer.Option(help="Its tenant; the cluster's when left out.")] = None,
    principal_id: Annotated[str | None, typer.Option(help="Object id, of a managed or an Arc identity.")] = None,
    use_azure_auth: Annotated[
        bool | None,
        typer.Option("--use-azure-auth/--bootstrap-token", help="The kubelet joins by that identity, or by a token."),
    ] = None,
    azure_auth: Annotated[
        str | None,
        typer.Option(
            help="How the kubelet joins by that identity: exec (it shows it at every call), or certificate (until it "
            "has one of its own, which is safer)."
        ),
    ] = None,
    monitor: Annotated[
        bool | None, typer.Option("--monitor/--no-monitor", help="The agent stays, follows and reports.")
    ] = None,
    kubernetes_version: Annotated[str | None, typer.Option(help="Kubernetes, such as 1.34.4.")] = None,
    containerd_version: Annotated[str | None, typer.Option(help="containerd.")] = None,
    runc_version: Annotated[str | None, typer.Option(help="runc.")] = None,
    cni_version: Annotated[str | None, typer.Option(help="The CNI plugins.")] = None,
    npd_version: Annotated[str | None, typer.Option(help="node-problem-detector.")] = None,
    agent_version: Annotated[str | None, typer.Option(help="The agent itself, where it stays.")] = None,
    max_pods: Annotated[int | None, typer.Option(help="How many pods it may run.")] = None,
    label: Annotated[list[str] | None, typer.Option(help="KEY=VALUE; KEY- removes. Repeatable.")] = None,
    taint: Annotated[
        list[str] | None, typer.Option(help="KEY=VALUE:EFFECT; KEY:EFFECT- removes. Repeatable.")
    ] = None,
    drift_policy: Annotated[str | None, typer.Option(help="About changes by hand: log or repair.")] = None,
    pause: Annotated[
        bool | None, typer.Option("--pause/--resume", help="Change nothing on the machine for now, or go on.")
    ] = None,
    vpn: Annotated[
        bool | None, typer.Option("--vpn/--no-vpn", help="Reach the cluster through a VPN; how, --file says.")
    ] = None,
    server_url: Annotated[
        str | None,
        typer.Option(help="The API server, where this node reaches it at another address; '' for the cluster's own."),
    ] = None,
    allow_downgrade: Annotated[
        bool, typer.Option("--allow-downgrade", help="Versions older than the node's are meant.")
    ] = False,
    join_command: Annotated[
        bool, typer.Option("--join-command", help="Also make the line for the machine, and print nothing else.")
    ] = False,
    json: JsonOption = False,
) -> None:
    versions = {
        "kubernetes": kubernetes_version,
        "containerd": containerd_version,
        "runc": runc_version,
        "cni": cni_version,
        "npd": npd_version,
        "agent": agent_version,
    }
    options = NodeOptions(
        auth_method=auth_method,
        client_id=client_id,
        client_secret=_secret(client_secret_file, reached.token_file),
        client_tenant=client_tenant,
        certificate_on_machine=certificate_on_machine,
        principal_id=principal_id,
        kubernetes_auth=kubernetes_auth_from(use_azure_auth, azure_auth),
        monitor=monitor,
        versions={name: version for name, version in versions.items() if version is not None},
        max_pods=max_pods,
        drift_policy=drift_policy,
        pause=pause,
        vpn=vpn,
        server_url=server_url,
        labels=label or (),
        taints=taint or (),
    )
    body = read_properties(file)
    target, client = reached.cluster(cluster), reached.client()
    if ctx.command.name == "create":
        written = create_node(client, target, name, apply_options(body or {}, options), join_command)
    else:
        how = UpdateOptions(url=join_command, downgrade=allow_downgrade)
        written = update_node(client, target, name, body, options, how)
    _tell(ctx.command.name or "", target, written, join_command=join_command, json=json)


def kubernetes_auth_from(use_azure_auth: bool | None, azure_auth: str | None) -> Document | None:
    """Renders two options as kubernetesAuth. The service refuses those that contradict each other, and says why."""
    if azure_auth is not None:
        return {"useAzureAuth": use_azure_auth is not False, "method": azure_auth}
    if use_azure_auth is None:
        return None
    return {"useAzureAuth": True} if use_azure_auth else {"method": BOOTSTRAP_TOKEN}


def apply_options(properties: Document, options: NodeOptions) -> Document:
    """Applies options to properties, and raises what cannot be applied as an error of this program's usage."""
    try:
        return node_changes.apply_options(properties, options)
    except NodeChangeError as error:
        raise _usage_error(error) from None


def _usage_error(error: NodeChangeError) -> CommandUsageError:
    text = f"{error.value!r} {error.reason}."
    if isinstance(error, UnusedOptionsError):
        text = f"A node whose method is {error.value} {error.reason}."
        return CommandUsageError("auth-options-mismatch", text, error.hint)
    if error.option == "labels":
        return CommandUsageError("label-invalid", text, error.hint)
    if error.option == "taints":
        return CommandUsageError("taint-invalid", text, error.hint)
    return CommandUsageError("auth-method-invalid", f"There is no method {error.value!r}.", error.hint)


def create_node(client: ServiceClient, cluster: ClusterId, name: str, properties: Document, url: bool) -> Document:
    from aks_flex_rp.api_client import RequestRefused

    try:
        return client.put_node(cluster, name, properties, url=url)
    except RequestRefused as refusal:
        if refusal.status != 412:
            raise
        raise ConfigError(
            "node-exists", f"There is a node {name} already.", "Change it with `aks-flex-rp node update`."
        ) from None


@dataclass(frozen=True)
class UpdateOptions:
    """How an update is to be done."""

    url: bool = False
    downgrade: bool = False


def update_node(
    client: ServiceClient,
    cluster: ClusterId,
    name: str,
    body: Document | None,
    options: NodeOptions,
    how: UpdateOptions,
) -> Document:
    """Read, change, write: only if it still is as it was read, so that nobody's change is undone."""
    from aks_flex_rp.api_client import RequestRefused

    found = client.node(cluster, name)
    for attempt in range(1, ATTEMPTS + 1):
        first = node_changes.writable_properties(found)
        desired = apply_options(first if body is None else body, options)
        if desired == first and not (how.url or how.downgrade):
            return found
        try:
            return client.put_node(cluster, name, desired, etag=found["etag"], url=how.url, downgrade=how.downgrade)
        except RequestRefused as refusal:
            if refusal.status != 412 or attempt == ATTEMPTS:
                raise
        found = client.node(cluster, name)
        overruled = (
            ["all of it"]
            if body is not None
            else node_changes.conflicting_paths(first, node_changes.writable_properties(found), options)
        )
        if overruled:
            raise ConfigError(
                "node-conflict",
                f"Somebody else has just changed the node {name}: {', '.join(overruled)}.",
                "Look at it with `aks-flex-rp node show`, and say again what it is to be.",
            )
    raise AssertionError("The last attempt returns or raises.")


def _tell(verb: str, cluster: ClusterId, written: Document, *, join_command: bool, json: bool) -> None:
    properties = written["properties"]
    name, version = written["name"], properties["configVersion"]
    if join_command:
        print_join_command(properties, json)
        return
    output.print_result(f"{name} {verb}d, configVersion {version}", written, json)
    if json:
        return
    if properties["status"].get("joinState") == "Joined":
        if not properties.get("continuousMonitoring"):
            output.print_note(
                f"{name} is not monitored: the machine hears of it by a new line of `node join-command`"
            )
    else:
        output.print_note(f"to join: aks-flex-rp node join-command --cluster {cluster.name} --name {name}")


def print_join_command(made: Document, json: bool) -> None:
    line = f"aks-flex-node agent --config-url '{made['configUrl']}'"
    output.print_result(
        line, {"command": line, "configUrl": made["configUrl"], "expires": made["configUrlExpires"]}, json
    )
    output.print_note(f"run it as root on the machine; good until {made['configUrlExpires']}, for one machine, once")


def _secret(file: str | None, token_file: str | None) -> str | None:
    if file is None:
        return None
    if file == "-" == token_file:
        raise CommandUsageError(
            "stdin-already-used", "Token and secret cannot both be read from standard input.", "Name a file."
        )
    secret = read_secret(file)
    if not secret:
        raise ConfigError("secret-empty", f"There is no secret in {file}.", "Check --client-secret-file.")
    return secret


def read_properties(file: Path | None) -> Document | None:
    """Reads the properties in a file, whether or not ARM's envelope is around them."""
    import yaml

    if file is None:
        return None
    try:
        document = yaml.safe_load(file.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is neither JSON nor YAML"
        raise ConfigError("node-file-invalid", f"{file} cannot be used: {why}.", "Check --file.") from None
    if not isinstance(document, dict):
        raise ConfigError(
            "node-file-invalid", f"{file} cannot be used: it holds no settings by name.", "Check --file."
        )
    inner = document.get("properties", document)
    if not isinstance(inner, dict):
        raise _invalid_file(file, "properties")
    made = node_changes.writable_properties(document) if "properties" in document else inner
    malformed = node_changes.malformed_path(made)
    if malformed:
        raise _invalid_file(file, malformed)
    return made


def _invalid_file(file: Path, path: str) -> ConfigError:
    why = f"{path} is not of the kind that the API has there"
    return ConfigError("node-file-invalid", f"{file} cannot be used: {why}.", "Check --file.")
