"""Validation rules beyond the table of settings: combinations of identities and versions, addresses in use.

Every rule yields the problems it finds, so that a caller gets all of them at the same time.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from aks_flex_node.settings.api import api_settings
from aks_flex_node.settings.table import by_path, reserved_kubelet_option
from aks_flex_rp.arm.errors import Problem, json_path, quoted
from aks_flex_rp.resource import versions
from aks_flex_rp.resource.properties import NO_IDENTITY, other_methods

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from aks_flex_rp.resource.properties import Properties

AUTH = ("properties", "azureAuth")
NODE = ("properties", "nodeConfig")
EXEC_NOT_ALLOWED = (
    "This service does not allow exec, because such a node is outside the cluster's restrictions for nodes. "
    "Use the method certificate. To allow exec for owners, set nodes.allowExec in the service's settings."
)


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
        *_node(properties),
        *_overlaps(properties, context.reserved_ranges),
    ]


def check_template_rules(template: Properties, context: ValidationContext) -> list[Problem]:
    """Returns the problems of a pool's template, as far as they do not depend on what its nodes add to it."""
    exec_problem = [Problem(json_path("properties", "kubernetesAuth", "method"), EXEC_NOT_ALLOWED)]
    return [
        *other_methods(template),
        *_shared_identity(template),
        *(exec_problem if template.by_identity == "exec" and not context.exec_allowed else ()),
        *_versions(template, context),
        *_node(template),
        *_overlaps(template, context.reserved_ranges),
    ]


def _shared_identity(template: Properties) -> Iterator[Problem]:
    """Refuses what is of one machine in a template, because all nodes of the pool would have the same."""
    shared = "All nodes of the pool would have it, and could act as each other. Set it for each node instead."
    if template.auth_method == "servicePrincipal" or template.at("azureAuth.servicePrincipal"):
        yield Problem(json_path(*AUTH, "servicePrincipal"), shared)
        return
    for path, entry in api_settings().items():
        if entry.setting.per_node and template.at(path) is not None:
            is_identity = path.startswith("azureAuth.")  # an Arc machine is known by its name, too
            yield Problem(f"properties.{path}", shared if is_identity else "Set it for each node instead.")


def _identity(properties: Properties, context: ValidationContext) -> Iterator[Problem]:
    yield from other_methods(properties)
    if properties.auth_method == "servicePrincipal":
        yield from _service_principal(properties, context)
    if properties.auth_method == "managedIdentity":
        yield from _known_identity(properties)


def _service_principal(properties: Properties, context: ValidationContext) -> Iterator[Problem]:
    principal, secret = properties.identity, properties.secret
    if properties.at("azureAuth.servicePrincipal") is None:
        yield Problem(json_path(*AUTH, "servicePrincipal"), "The method servicePrincipal requires these settings.")
        return

    signs_in = properties.is_managed or properties.by_identity
    if signs_in and not principal.get("clientTenant") and not context.tenant_known:
        yield Problem(
            json_path(*AUTH, "servicePrincipal", "clientTenant"),
            "The tenant of the service principal is needed: the cluster was added without one, and the service "
            "does not accept exactly one tenant. Set it, or run `aks-flex-rp cluster add` again with `--tenant`.",
        )

    def problem(message: str) -> Problem:
        return Problem(json_path(*AUTH, "servicePrincipal", "clientSecret"), message)

    if principal.get("certificateOnMachine"):
        if secret is not None:
            yield problem("A service principal with certificateOnMachine has no client secret.")
        return
    if secret is None and str(principal.get("clientId", "")).lower() != context.stored_secret_client:
        why = (
            "the stored secret belongs to another service principal"
            if context.stored_secret_client
            else "no secret is stored"
        )
        yield problem(
            f"The secret is needed: {why}. If the machine has a certificate instead, set certificateOnMachine.",
        )


def _known_identity(properties: Properties) -> Iterator[Problem]:
    """Requires the ID of a managed identity if the node calls the service.

    Tokens of Arc machines name the machine.
    """
    feature = "continuousMonitoring" if properties.is_managed else ""
    if not feature and properties.by_identity:
        feature = "Joining with the Azure identity"
    if feature and not (properties.identity.get("clientId") or properties.identity.get("principalId")):
        yield Problem(
            json_path(*AUTH, "managedIdentity"),
            f"{feature} needs the clientId or principalId of the identity, to recognize the node's requests.",
        )


def _joining(properties: Properties, context: ValidationContext) -> Iterator[Problem]:
    uses_azure, by_identity = properties.at("kubernetesAuth.useAzureAuth"), properties.by_identity

    def problem(message: str) -> Problem:
        return Problem(json_path("properties", "kubernetesAuth", "useAzureAuth" if uses_azure else "method"), message)

    if not by_identity:
        if uses_azure:
            yield problem("A node joins with its Azure identity or with a bootstrap token, not with both.")
        return
    if uses_azure is False:
        yield problem(f"The method {properties.join_method} uses the Azure identity, but useAzureAuth is false.")
    if properties.auth_method == NO_IDENTITY:
        yield problem("The node has no Azure identity to join with: azureAuth.method is none.")
    if by_identity == "exec" and not context.exec_allowed:
        yield problem(EXEC_NOT_ALLOWED)
    if context.accepts_entra is False:
        yield problem("This cluster does not accept Entra ID. Use the method bootstrapToken.")


def _versions(properties: Properties, context: ValidationContext) -> Iterator[Problem]:
    for name, text in properties.versions.items():
        plain, reasons = text.removeprefix("v"), []
        if name == "kubernetes":
            reasons.append(_skew(plain, context.cluster_version))
        if context.current_versions and not context.allow_downgrade:
            reasons.append(_downgrade(plain, context.current_versions.get(name, "")))
        for reason in filter(None, reasons):
            yield Problem(json_path("properties", "versions", name), f"{quoted(plain)} {reason}")


def _skew(text: str, cluster: str) -> str | None:
    desired, server = versions.parse_version(text), versions.parse_version(cluster)
    if desired is None or server is None:
        return None
    if desired > server:
        return f"is newer than the cluster's API server ({server}). Upgrade the cluster first."
    if (desired.major, desired.minor) < (server.major, server.minor - versions.MAX_KUBELET_SKEW):
        oldest = f"{server.major}.{server.minor - versions.MAX_KUBELET_SKEW}"
        return f"is too old for the cluster's API server ({server}), which supports {oldest} and later."
    return None


def _downgrade(text: str, earlier: str) -> str | None:
    if not versions.is_older(text, earlier):
        return None
    now = versions.parse_version(earlier)
    return (
        f"is older than the current version {now}. If that is meant, use --allow-downgrade, or "
        "allowDowngrade=true in the query."
    )


def _node(properties: Properties) -> Iterator[Problem]:
    node, seen = properties.at("nodeConfig") or {}, set()
    for number, taint in enumerate(node.get("taints", ())):
        identity = taint["key"], taint["effect"]
        if identity in seen:
            text = f"{quoted(taint['key'])} with effect {taint['effect']} is listed twice."
            yield Problem(json_path(*NODE, "taints", number), text)
        seen.add(identity)
    kubelet = node.get("kubelet", {})
    names = "imageGCHighThreshold", "imageGCLowThreshold"
    usual = {name: by_path()[f"node.kubelet.{name}"].default for name in names}
    high, low = (kubelet.get(name, usual[name]) for name in names)
    if high <= low:
        yield Problem(
            json_path(*NODE, "kubelet", "imageGCLowThreshold"),
            f"The low threshold, {low}, must be below the high threshold, {high}.",
        )
    for key in kubelet.get("extraConfig", ()):
        if reason := reserved_kubelet_option(key):
            path = json_path(*NODE, "kubelet", "extraConfig", key)
            yield Problem(path, f"This option cannot be set here, because it {reason}.")
    for registry, mirrors in node.get("registryMirrors", {}).items():
        if not mirrors:
            path = json_path(*NODE, "registryMirrors", registry)
            yield Problem(path, "The list contains no mirror. Add one, or remove the registry.")
    window = node.get("updatePolicy", {}).get("maintenanceWindow")
    if window is not None and "start" not in window:
        path = json_path(*NODE, "updatePolicy", "maintenanceWindow", "start")
        text = "A maintenance window needs a start (--window-start)."
        yield Problem(path, f"{text} The node has it as a whole, and nothing of its pool's.")


def _overlaps(properties: Properties, reserved: Mapping[str, str]) -> Iterator[Problem]:
    """Yields overlaps of the addresses of VPN clients. The default pool is checked as well."""
    vpn = properties.at("nodeConfig.vpn") or {}
    given, subnet = vpn.get("p2sGatewayCIDR"), vpn.get("gatewaySubnetCIDR")
    text = given or (by_path()["azure.vpn.p2sGatewayCIDR"].default if vpn.get("enabled") else "")
    if not text:
        return
    others = {**({subnet: "gatewaySubnetCIDR"} if subnet else {}), **reserved}
    found = [f"{each} ({what})" for each, what in others.items() if _overlap(ipaddress.IPv4Network(text), each)]
    if found:
        usual = "" if given else ", the default pool,"
        yield Problem(
            json_path(*NODE, "vpn", "p2sGatewayCIDR"),
            f"{quoted(text)}{usual} overlaps {' and '.join(found)}. "
            "Choose an unused range for VPN clients, such as 172.31.255.0/24.",
        )


def _overlap(pool: ipaddress.IPv4Network, other: str) -> bool:
    try:
        return pool.overlaps(ipaddress.IPv4Network(other, strict=False))
    except ValueError:  # IPv6
        return False
