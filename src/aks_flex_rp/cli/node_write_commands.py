"""Commands `node create` and `node update`: build the request body from options and write it with If-Match."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from aks_flex_node.api import node_changes
from aks_flex_node.api.node_changes import BOOTSTRAP_TOKEN, NodeChangeError, NodeOptions, UnusedOptionsError
from aks_flex_node.api.node_summary import EXEC_WARNING, joins_by_exec, machine_note, not_applied_text
from aks_flex_node.api.node_summary import join_command as format_join_command
from aks_flex_node.errors import CommandUsageError, ConfigError
from aks_flex_rp.cli import output
from aks_flex_rp.cli.command_context import (
    NameOption,
    ServiceOptions,
    read_secret,
    with_service,
)
from aks_flex_rp.cli.property_files import read_mapping, read_properties

if TYPE_CHECKING:
    from aks_flex_rp.api_client import ServiceClient
    from aks_flex_rp.arm.ids import ClusterId

    Document = dict[str, Any]

REPEATED_OPTIONS = [each.name for each in fields(ServiceOptions) if each.name != "json"]
# Options of nodes and of the templates of pools
ContainerdVersion = Annotated[str | None, typer.Option(metavar="VERSION", help="containerd version.")]
MaxPods = Annotated[int | None, typer.Option(metavar="N", help="Maximum number of pods.")]
Labels = Annotated[list[str] | None, typer.Option(metavar="KEY=VALUE", help="KEY=VALUE; KEY- removes. Repeatable.")]
Taints = Annotated[
    list[str] | None,
    typer.Option(metavar="KEY=VALUE:EFFECT", help="KEY=VALUE:EFFECT; KEY:EFFECT- removes. Repeatable."),
]
KubeletSettings = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEY=VALUE", help="A kubelet setting, for example kubeReserved.cpu=100m; KEY- removes. Repeatable."
    ),
]
DriftPolicy = Annotated[str | None, typer.Option(metavar="POLICY", help="Action on drift: log or repair.")]

ATTEMPTS = 4  # when other clients change the node at the same time


@with_service
def write_node(
    service: ServiceOptions,
    ctx: typer.Context,
    name: NameOption,
    file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", readable=False, help="All properties as JSON or YAML. Options override the file."
        ),
    ] = None,
    pool: Annotated[str | None, typer.Option(metavar="POOL", help="Pool of the node. '' removes it.")] = None,
    auth_method: Annotated[
        str | None,
        typer.Option(
            metavar="METHOD", help="Azure identity of the agent: servicePrincipal, managedIdentity, arc, none."
        ),
    ] = None,
    client_id: Annotated[str | None, typer.Option(metavar="ID", help="Client ID of the identity.")] = None,
    client_secret_file: Annotated[
        str | None, typer.Option(metavar="FILE", help="File with the client secret, `-` for stdin.")
    ] = None,
    certificate_on_machine: Annotated[
        bool | None,
        typer.Option("--certificate-on-machine", help="The service principal uses a certificate on the machine."),
    ] = None,
    client_tenant: Annotated[
        str | None, typer.Option(metavar="ID", help="Tenant of the identity. Default: tenant of the cluster.")
    ] = None,
    principal_id: Annotated[
        str | None, typer.Option(metavar="ID", help="Object ID of a managed or Arc identity.")
    ] = None,
    use_azure_auth: Annotated[
        bool | None,
        typer.Option("--use-azure-auth/--bootstrap-token", help="Join with the identity, or with a token."),
    ] = None,
    azure_auth: Annotated[
        str | None,
        typer.Option(
            metavar="MODE",
            help="How the kubelet uses the identity: certificate (only for its first certificate, default) or exec "
            "(for every request, only for owners, outside the cluster's restrictions for nodes).",
        ),
    ] = None,
    monitor: Annotated[
        bool | None,
        typer.Option(
            "--monitor/--no-monitor",
            help="Managed node: apply changes and report status. Default of new nodes: yes, or as their pool.",
        ),
    ] = None,
    kubernetes_version: Annotated[
        str | None,
        typer.Option(metavar="VERSION", help="Kubernetes version, for example 1.36.3. '' resets it, as below."),
    ] = None,
    containerd_version: ContainerdVersion = None,
    runc_version: Annotated[str | None, typer.Option(metavar="VERSION", help="runc version.")] = None,
    cni_version: Annotated[str | None, typer.Option(metavar="VERSION", help="CNI plugins version.")] = None,
    npd_version: Annotated[str | None, typer.Option(metavar="VERSION", help="node-problem-detector version.")] = None,
    agent_version: Annotated[
        str | None,
        typer.Option(metavar="VERSION", help="Agent version (managed nodes). '' removes it: the installed one runs."),
    ] = None,
    max_pods: MaxPods = None,
    label: Labels = None,
    taint: Taints = None,
    kubelet_config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", readable=False, help="All kubelet settings as JSON or YAML (nodeConfig.kubelet)."
        ),
    ] = None,
    kubelet_setting: KubeletSettings = None,
    drift_policy: DriftPolicy = None,
    window_start: Annotated[
        str | None,
        typer.Option(metavar="HH:MM", help="Maintenance window: its start. '' removes the window."),
    ] = None,
    window_day: Annotated[
        list[str] | None,
        typer.Option(metavar="DAY", help="Maintenance window: a weekday, or `daily` (default). Repeatable."),
    ] = None,
    window_minutes: Annotated[
        int | None, typer.Option(metavar="N", help="Maintenance window: its duration in minutes, 15 to 1440.")
    ] = None,
    window_time_zone: Annotated[
        str | None, typer.Option(metavar="ZONE", help="Maintenance window: its time zone, for example Europe/Berlin.")
    ] = None,
    drain: Annotated[
        bool | None, typer.Option("--drain/--no-drain", help="Drain the node before an update that stops its pods.")
    ] = None,
    drain_timeout: Annotated[int | None, typer.Option(metavar="SECONDS", help="Time limit of a drain.")] = None,
    health_timeout: Annotated[
        int | None, typer.Option(metavar="SECONDS", help="Time in which an updated node must become healthy.")
    ] = None,
    pause: Annotated[
        bool | None, typer.Option("--pause/--resume", help="Pause or resume changes on the machine.")
    ] = None,
    vpn: Annotated[
        bool | None, typer.Option("--vpn/--no-vpn", help="Connect through a VPN. Configure it with --file.")
    ] = None,
    server_url: Annotated[
        str | None,
        typer.Option(metavar="URL", help="API server URL for this node. '' resets it to the cluster's."),
    ] = None,
    allow_downgrade: Annotated[
        bool, typer.Option("--allow-downgrade", help="Allow older versions than the node has.")
    ] = False,
    override_rollout: Annotated[
        bool,
        typer.Option("--override-rollout", help="Ignore barred revisions, and limits of an active roll-out."),
    ] = False,
    join_command: Annotated[
        bool, typer.Option("--join-command", help="Create and print only the join command.")
    ] = False,
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
        client_secret=_secret(client_secret_file, service.token_file),
        client_tenant=client_tenant,
        certificate_on_machine=certificate_on_machine,
        principal_id=principal_id,
        kubernetes_auth=kubernetes_auth_from(use_azure_auth, azure_auth),
        monitor=monitor,
        versions={name: version for name, version in versions.items() if version is not None},
        max_pods=max_pods,
        kubelet=read_mapping(kubelet_config, "--kubelet-config") if kubelet_config else None,
        kubelet_settings=kubelet_setting or (),
        drift_policy=drift_policy,
        pause=pause,
        window_start=window_start,
        window_days=window_day or (),
        window_minutes=window_minutes,
        window_time_zone=window_time_zone,
        drain=drain,
        drain_timeout=drain_timeout,
        health_timeout=health_timeout,
        vpn=vpn,
        server_url=server_url,
        labels=label or (),
        taints=taint or (),
        pool=pool,
    )
    body = read_properties(file)
    target, client = service.target, service.client()
    how = WriteFlags(url=join_command, downgrade=allow_downgrade, override=override_rollout)
    if ctx.command.name == "create":
        in_pool = pool or (body or {}).get("poolName")  # then its template decides
        managed = {"continuousMonitoring": True} if monitor is None and not in_pool else {}
        properties = apply_options({**managed, **(body or {})}, options)
        written = create_node(client, target, name, properties, how)
    else:
        written = update_node(client, target, name, body, options, how)
    _print_written(service, ctx, written, join_command=join_command)


def kubernetes_auth_from(use_azure_auth: bool | None, azure_auth: str | None) -> Document | None:
    """Converts the two options to `kubernetesAuth`. The service rejects contradictory values."""
    if azure_auth is not None:
        return {"useAzureAuth": use_azure_auth is not False, "method": azure_auth}
    if use_azure_auth is None:
        return None
    return {"useAzureAuth": True} if use_azure_auth else {"method": BOOTSTRAP_TOKEN}


def apply_options(properties: Document, options: NodeOptions) -> Document:
    """Applies options to properties. Raises CommandUsageError for invalid options."""
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
    if error.option == "kubelet-settings":
        return CommandUsageError("kubelet-setting-invalid", text, error.hint)
    if error.option == "window-days":
        return CommandUsageError("weekday-invalid", text, error.hint)
    return CommandUsageError("auth-method-invalid", f"Unknown authentication method {error.value!r}.", error.hint)


@dataclass(frozen=True)
class WriteFlags:
    """Flags of a write request."""

    url: bool = False
    downgrade: bool = False
    override: bool = False


def create_node(
    client: ServiceClient, cluster: ClusterId, name: str, properties: Document, how: WriteFlags
) -> Document:
    """Creates a node. Fails if it exists."""
    from aks_flex_rp.api_client import RequestRefused

    try:
        return client.put_node(cluster, name, properties, url=how.url, override=how.override)
    except RequestRefused as refusal:
        if refusal.status != 412:
            raise
        raise ConfigError(
            "node-exists", f"The node {name} already exists.", "Use `aks-flex-rp node update` to change it."
        ) from None


def read_node(client: ServiceClient, cluster: ClusterId, name: str) -> Document | None:
    """Reads a node. Returns None if it does not exist, or if the caller may not read it."""
    from aks_flex_rp.api_client import RequestRefused

    try:
        return client.node(cluster, name)
    except RequestRefused as refusal:
        if refusal.status not in {403, 404}:
            raise
        return None


def update_node(
    client: ServiceClient,
    cluster: ClusterId,
    name: str,
    body: Document | None,
    options: NodeOptions,
    how: WriteFlags,
) -> Document:
    """Reads, changes and writes a node. Retries if another client changed unrelated settings meanwhile."""
    from aks_flex_rp.api_client import RequestRefused

    found = client.node(cluster, name)
    given, leaving = options, found
    options = options if body is not None else node_changes.keep_managed(found, options)
    for attempt in range(1, ATTEMPTS + 1):
        first = node_changes.writable_properties(found)
        desired = apply_options(first if body is None else body, options)
        if desired == first and not (how.url or how.downgrade):
            return found
        try:
            etag = found["etag"]
            written = client.put_node(
                cluster, name, desired, etag=etag, url=how.url, downgrade=how.downgrade, override=how.override
            )
            if options is not given:
                output.print_note(node_changes.stays_managed_text(leaving))
            return written
        except RequestRefused as refusal:
            if refusal.status != 412 or attempt == ATTEMPTS:
                raise
        found = client.node(cluster, name)
        conflicts = (
            ["all settings"]
            if body is not None
            else node_changes.conflicting_paths(first, node_changes.writable_properties(found), options)
        )
        if conflicts:
            raise ConfigError(
                "node-conflict",
                f"Another client changed the node {name} at the same time: {', '.join(conflicts)}.",
                "Check the node with `aks-flex-rp node show`, and run the command again.",
            )
    raise AssertionError("The last attempt returns or raises.")


def _print_written(service: ServiceOptions, ctx: typer.Context, written: Document, *, join_command: bool) -> None:
    verb, properties = ctx.command.name, written["properties"]
    name, version = written["name"], properties["configVersion"]
    for warning in output.version_warnings(properties["status"]):
        output.print_note(f"warning: {warning}")
    if joins_by_exec(properties):
        output.print_note(f"warning: {EXEC_WARNING}")
    if join_command:
        print_join_command(service, properties)
        return
    service.print_result(f"{name} {verb}d, configVersion {version}", written)
    if service.json:
        return
    command = f"`aks-flex-rp node join-command --name {name}{given_options(ctx)}`"
    if verb == "update" and (text := not_applied_text(name, written)):
        output.print_note(f"{text} To apply it, run {command}, and run the command that it prints on the machine.")
    elif properties["status"].get("joinState") != "Joined":
        output.print_note(f"To join, run {command}, and run the command that it prints on the machine.")


def given_options(ctx: typer.Context) -> str:
    """Returns the options for cluster and service as given on the command line, for the next command."""
    sources = {name: ctx.get_parameter_source(name) for name in REPEATED_OPTIONS}
    given = [name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"]
    return "".join(f" --{name.replace('_', '-')} {shlex.quote(str(ctx.params[name]))}" for name in given)


def print_join_command(service: ServiceOptions, made: Document) -> None:
    """Prints the join command of a new configuration URL."""
    line = format_join_command(str(made["configUrl"]))
    document = {"command": line, "configUrl": made["configUrl"], "expires": made["configUrlExpires"]}
    service.print_result(line, document | ({"machine": made["machine"]} if "machine" in made else {}))
    output.print_note(f"Run it as root on the machine. Valid until {made['configUrlExpires']}, for one use.")


def print_machine_note(name: str, made: Document, *, replace: bool) -> None:
    """Warns that the node lives on a machine, and that the URL works only there or moves the node."""
    if note := machine_note(name, made, replace=replace):
        output.print_note(note)


def _secret(file: str | None, token_file: str | None) -> str | None:
    if file is None:
        return None
    if file == "-" == token_file:
        raise CommandUsageError(
            "stdin-already-used",
            "The token and the secret cannot both be read from standard input.",
            "Use a file for one of them.",
        )
    secret = read_secret(file)
    if not secret:
        raise ConfigError("secret-empty", f"{file} does not contain a secret.", "Check `--client-secret-file`.")
    return secret
