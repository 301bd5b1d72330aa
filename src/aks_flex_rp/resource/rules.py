"""Validation rules beyond the schema: Kubernetes naming rules, valid identity combinations, version skew.

Every rule yields the problems it finds, so that a caller gets all of them at the same time.
"""

from __future__ import annotations

import zoneinfo
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING

from aks_flex_node.api import kubernetes_rules as kubernetes
from aks_flex_node.api import value_rules as values
from aks_flex_rp.arm.errors import Problem, first_violation, json_path, quoted
from aks_flex_rp.resource import network_rules, versions

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from aks_flex_rp.resource.models import (
        Arc,
        AzureAuth,
        Kubelet,
        NodeConfigProperties,
        Properties,
        TemplateProperties,
    )

AUTH = ("properties", "azureAuth")
NODE = ("properties", "nodeConfig")
EXEC_NOT_ALLOWED = (
    "This service does not allow exec, because such a node is outside the cluster's restrictions for nodes. "
    "Use the method certificate. To allow exec for owners, set nodes.allowExec in the service's settings."
)
METHODS = ("servicePrincipal", "managedIdentity", "arc")


@dataclass(frozen=True)
class ValidationContext:
    """State that a request body is validated against."""

    cluster_version: str
    accepts_entra: bool | None = None  # whether the cluster accepts Entra ID; None if unknown
    current_versions: Mapping[str, str] | None = None  # current versions of an existing node
    stored_secret_client: str = ""  # client ID of the stored secret
    reserved_ranges: Mapping[str, str] = field(default_factory=dict)  # used addresses and what uses them
    allow_downgrade: bool = False  # the caller explicitly allows older versions
    exec_allowed: bool = True  # the service's settings allow exec, or the node already joins by exec
    tenant_known: bool = True  # the cluster has a tenant, or the service accepts only one


def check_rules(properties: Properties, context: ValidationContext) -> list[Problem]:
    return [
        *_identity(properties, context),
        *_joining(properties, context),
        *_versions(properties, context),
        *_node(properties.node_config),
        *network_rules.check_network(properties.node_config, context.reserved_ranges),
    ]


def check_template_rules(template: TemplateProperties, context: ValidationContext) -> list[Problem]:
    """Returns the problems of a pool's template, as far as they do not depend on what its nodes add to it."""
    join = template.kubernetes_auth
    exec_problem = [Problem(json_path("properties", "kubernetesAuth", "method"), EXEC_NOT_ALLOWED)]
    return [
        *_other_methods(template),
        *_shared_identity(template.azure_auth),
        *(_arc(template.azure_auth.arc) if template.azure_auth.arc else ()),
        *(exec_problem if join.by_identity == "exec" and not context.exec_allowed else ()),
        *_versions(template, context),
        *_node(template.node_config),
        *network_rules.check_network(template.node_config, context.reserved_ranges),
    ]


def _shared_identity(auth: AzureAuth) -> Iterator[Problem]:
    """Refuses identities in a template, because all nodes of the pool would have the same one."""
    shared = "Nodes that share an identity could act as each other. Set it for each node instead."
    if auth.method == "servicePrincipal" or auth.service_principal:
        yield Problem(
            json_path(*AUTH, "servicePrincipal"), f"All nodes of the pool would have this service principal. {shared}"
        )
    managed, arc = auth.managed_identity, auth.arc
    for block, name, value in (
        ("managedIdentity", "clientId", managed.client_id if managed else None),
        ("managedIdentity", "principalId", managed.principal_id if managed else None),
        ("arc", "principalId", arc.principal_id if arc else None),
        ("arc", "machineName", arc.machine_name if arc else None),
    ):
        if value is not None:
            yield Problem(json_path(*AUTH, block, name), f"All nodes of the pool would have this identity. {shared}")


def _other_methods(properties: TemplateProperties) -> Iterator[Problem]:
    auth = properties.azure_auth
    blocks = dict(zip(METHODS, (auth.service_principal, auth.managed_identity, auth.arc), strict=True))
    for method, block in blocks.items():
        if block is not None and method != auth.method:
            yield Problem(
                json_path(*AUTH, method),
                f"These settings are for method {method}, but the method is {auth.method}.",
            )


def _identity(properties: Properties, context: ValidationContext) -> Iterator[Problem]:
    auth = properties.azure_auth
    yield from _other_methods(properties)
    if auth.method == "servicePrincipal":
        yield from _service_principal(properties, context)
    if auth.arc:
        yield from _arc(auth.arc)
    if auth.method == "managedIdentity":
        yield from _known_identity(properties)


def _service_principal(properties: Properties, context: ValidationContext) -> Iterator[Problem]:
    principal = properties.azure_auth.service_principal
    if principal is None:
        yield Problem(json_path(*AUTH, "servicePrincipal"), "The method servicePrincipal requires these settings.")
        return

    signs_in = properties.continuous_monitoring or properties.kubernetes_auth.by_identity
    if signs_in and not principal.client_tenant and not context.tenant_known:
        yield Problem(
            json_path(*AUTH, "servicePrincipal", "clientTenant"),
            "The tenant of the service principal is needed: the cluster was added without one, and the service "
            "does not accept exactly one tenant. Set it, or run `aks-flex-rp cluster add` again with `--tenant`.",
        )

    def problem(message: str) -> Problem:
        return Problem(json_path(*AUTH, "servicePrincipal", "clientSecret"), message)

    secret = principal.client_secret.get_secret_value() if principal.client_secret else None
    if principal.certificate_on_machine:
        if secret is not None:
            yield problem("A service principal with certificateOnMachine has no client secret.")
        return
    if secret is not None and not secret.strip():
        yield problem("The secret is empty. Omit it to keep the stored one.")
    elif secret is not None and (wrong := _invalid_secret(secret)):
        yield problem(f"The secret {wrong}")
    if principal.client_secret is None and principal.client_id.lower() != context.stored_secret_client:
        why = (
            "the stored secret belongs to another service principal"
            if context.stored_secret_client
            else "no secret is stored"
        )
        yield problem(
            f"The secret is needed: {why}. If the machine has a certificate instead, set certificateOnMachine.",
        )


def _invalid_secret(text: str) -> str | None:
    """Returns why the text is invalid: several lines, a placeholder, or a masked secret."""
    if set(text) == {"*"}:
        return "is a masked secret."
    return values.plain(text) or values.placeholder(text)


def _arc(arc: Arc) -> Iterator[Problem]:
    path = (*AUTH, "arc")
    for name, text in (("machineName", arc.machine_name), ("resourceGroup", arc.resource_group)):
        if text:
            yield from first_violation((*path, name), text, values.azure_name)
    if arc.location:
        yield from first_violation((*path, "location"), arc.location, values.plain, values.placeholder)
    for key, value in (arc.tags or {}).items():
        yield from first_violation((*path, "tags", key), key, values.plain)
        yield from first_violation((*path, "tags", key), value, values.plain)


def _known_identity(properties: Properties) -> Iterator[Problem]:
    """Requires the ID of a managed identity if the node calls the service.

    Tokens of Arc machines name the machine.
    """
    managed = properties.azure_auth.managed_identity
    feature = "continuousMonitoring" if properties.continuous_monitoring else ""
    if not feature and properties.kubernetes_auth.by_identity:
        feature = "Joining with the Azure identity"
    if feature and not (managed and (managed.client_id or managed.principal_id)):
        yield Problem(
            json_path(*AUTH, "managedIdentity"),
            f"{feature} needs the clientId or principalId of the identity, to recognize the node's requests.",
        )


def _joining(properties: Properties, context: ValidationContext) -> Iterator[Problem]:
    join = properties.kubernetes_auth

    def problem(message: str) -> Problem:
        name = "useAzureAuth" if join.use_azure_auth else "method"
        return Problem(json_path("properties", "kubernetesAuth", name), message)

    if not join.by_identity:
        if join.use_azure_auth:
            yield problem("A node joins with its Azure identity or with a bootstrap token, not with both.")
        return
    if join.use_azure_auth is False:
        yield problem(f"The method {join.method} uses the Azure identity, but useAzureAuth is false.")
    if properties.azure_auth.method == "none":
        yield problem("The node has no Azure identity to join with: azureAuth.method is none.")
    if join.by_identity == "exec" and not context.exec_allowed:
        yield problem(EXEC_NOT_ALLOWED)
    if context.accepts_entra is False:
        yield problem("This cluster does not accept Entra ID. Use the method bootstrapToken.")


def _versions(properties: TemplateProperties, context: ValidationContext) -> Iterator[Problem]:
    for name, text in properties.versions.model_dump(exclude_none=True).items():
        location = json_path("properties", "versions", name)
        plain = text.removeprefix("v")
        if wrong := kubernetes.version(plain):
            yield Problem(location, f"{quoted(text)} {wrong}")
            continue
        if name == "kubernetes":
            yield from _skew(location, plain, context.cluster_version)
        if context.current_versions and not context.allow_downgrade:
            yield from _downgrade(location, plain, context.current_versions.get(name, ""))


def _skew(path: str, text: str, cluster: str) -> Iterator[Problem]:
    desired, server = versions.parse_version(text), versions.parse_version(cluster)
    if desired is None or server is None:
        return
    if desired > server:
        yield Problem(
            path,
            f"{quoted(text)} is newer than the cluster's API server ({server}). Upgrade the cluster first.",
        )
    elif (desired.major, desired.minor) < (server.major, server.minor - versions.MAX_KUBELET_SKEW):
        oldest = f"{server.major}.{server.minor - versions.MAX_KUBELET_SKEW}"
        yield Problem(
            path,
            f"{quoted(text)} is too old for the cluster's API server ({server}), which supports {oldest} and later.",
        )


def _downgrade(path: str, text: str, earlier: str) -> Iterator[Problem]:
    if versions.is_older(text, earlier):
        now = versions.parse_version(earlier)
        yield Problem(
            path,
            f"{quoted(text)} is older than the current version {now}. If that is meant, use --allow-downgrade, or "
            "allowDowngrade=true in the query.",
        )


def _node(node: NodeConfigProperties) -> Iterator[Problem]:
    for key, value in (node.labels or {}).items():
        path = (*NODE, "labels", key)
        yield from first_violation(path, key, kubernetes.label_key, kubernetes.own_label)
        yield from first_violation(path, value, kubernetes.label_value)
    yield from _taints(node)
    if node.kubelet:
        yield from _kubelet(node.kubelet)
    yield from _mirrors(node)
    if node.artifacts and node.artifacts.base_url:
        yield from _artifact_url(json_path(*NODE, "artifacts", "baseURL"), node.artifacts.base_url)
    window = node.update_policy.maintenance_window if node.update_policy else None
    if window and window.time_zone and window.time_zone not in _time_zones():
        zone = json_path(*NODE, "updatePolicy", "maintenanceWindow", "timeZone")
        yield Problem(
            zone, f"{quoted(window.time_zone)} is not a time zone. Use a name such as Europe/Berlin or UTC."
        )


@cache
def _time_zones() -> set[str]:
    """Returns the names of all time zones, which are read from many files."""
    return zoneinfo.available_timezones()


def _taints(node: NodeConfigProperties) -> Iterator[Problem]:
    seen: set[tuple[str, str]] = set()
    for number, taint in enumerate(node.taints or ()):
        path = (*NODE, "taints", number)
        yield from first_violation((*path, "key"), taint.key, kubernetes.label_key)
        yield from first_violation((*path, "value"), taint.value or "", kubernetes.label_value)
        if (taint.key, taint.effect) in seen:
            yield Problem(json_path(*path), f"{quoted(taint.key)} with effect {taint.effect} is listed twice.")
        seen.add((taint.key, taint.effect))


def _kubelet(kubelet: Kubelet) -> Iterator[Problem]:
    path = (*NODE, "kubelet")
    for name, reserved in (("kubeReserved", kubelet.kube_reserved), ("systemReserved", kubelet.system_reserved)):
        for key, value in (reserved or {}).items():
            yield from first_violation((*path, name, key), key, kubernetes.reservable)
            yield from first_violation((*path, name, key), value, kubernetes.quantity)
    for key, value in (kubelet.eviction_hard or {}).items():
        yield from first_violation((*path, "evictionHard", key), key, kubernetes.eviction_signal)
        yield from first_violation((*path, "evictionHard", key), value, kubernetes.eviction_threshold)
    high, low = kubelet.image_gc_high_threshold, kubelet.image_gc_low_threshold
    if (85 if high is None else high) <= (80 if low is None else low):
        yield Problem(
            json_path(*path, "imageGCLowThreshold"),
            "The low threshold (default 80) must be below the high threshold (default 85).",
        )
    if kubelet.cluster_domain:
        yield from first_violation((*path, "clusterDomain"), kubelet.cluster_domain, kubernetes.domain)
    for key in kubelet.extra_config or ():
        if reason := kubernetes.reserved_kubelet_option(key):
            yield Problem(
                json_path(*path, "extraConfig", key), f"This option cannot be set here, because it {reason}."
            )


def _mirrors(node: NodeConfigProperties) -> Iterator[Problem]:
    for registry, mirrors in (node.registry_mirrors or {}).items():
        path = (*NODE, "registryMirrors", registry)
        yield from first_violation(path, registry, values.registry)
        if not mirrors:
            yield Problem(json_path(*path), "The list contains no mirror. Add one, or remove the registry.")
        for number, url in enumerate(mirrors):
            yield from _url(json_path(*path, number), url)


def _artifact_url(path: str, text: str) -> Iterator[Problem]:
    """Checks the URL of a mirror of programs. Nodes refuse one without TLS."""
    if text.startswith("http://"):
        yield Problem(
            path,
            "The URL is not encrypted, and nodes refuse it. Use https://. Without an https mirror, use an offline "
            "bundle on the machine (artifacts.bundle).",
        )
    else:
        yield from _url(path, text)


def _url(path: str, text: str) -> Iterator[Problem]:
    """Checks a URL. It is shown to all readers of the node, so it must not contain a password. Messages omit it."""
    if wrong := values.url(text):
        yield Problem(path, f"The value {wrong}")
    elif set(text) & set("?#@"):
        yield Problem(
            path, "The URL must not contain a user, password, query or fragment, because it is not kept secret."
        )
