"""Applies the options of `node create` and `node update` to a node's properties: a document in, a document out.

`aks-flex-rp` imports this module, and the wheel of `az aks flex-node` contains a copy of it and of `option_error`. It
imports only that one, by its place, and the standard library.
"""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from .option_error import OptionError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    Document = dict[str, Any]
    NodeChange = Callable[[Document], Document]

WRITABLE = ("poolName", "continuousMonitoring", "azureAuth", "kubernetesAuth", "versions", "nodeConfig")
NO_IDENTITY, BOOTSTRAP_TOKEN = "none", "bootstrapToken"  # azureAuth without an identity: in the API, and in az
SERVICE_PRINCIPAL, MANAGED_IDENTITY, ARC = "servicePrincipal", "managedIdentity", "arc"
IDENTITIES = (SERVICE_PRINCIPAL, MANAGED_IDENTITY, ARC)
KUBERNETES_AUTH_METHODS = (BOOTSTRAP_TOKEN, "exec", "certificate")
WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
DAILY = "daily"
EXTRA_CONFIG = "extraConfig"
KUBELET_NUMBERS = ("imageGCHighThreshold", "imageGCLowThreshold", "verbosity", "podPidsLimit")
KUBELET_TEXTS = ("clusterDomain", "serverURL")
KUBELET_MAPS = ("kubeReserved", "systemReserved", "evictionHard", EXTRA_CONFIG)
KUBELET_KEYS = (*KUBELET_NUMBERS, *KUBELET_TEXTS, *KUBELET_MAPS)
OBJECT_PATHS = (
    *(f"azureAuth.{method}" for method in IDENTITIES),
    *(f"nodeConfig.{name}" for name in ("labels", "kubelet", "updatePolicy", "vpn")),
    "nodeConfig.updatePolicy.maintenanceWindow",
    "kubernetesAuth",
    "versions",
)


@dataclass(frozen=True)
class NodeOptions:
    """The options of the command. None or empty means that an option is not set."""

    auth_method: str | None = None
    client_id: str | None = None
    client_secret: str | None = field(default=None, repr=False)
    client_tenant: str | None = None
    principal_id: str | None = None
    certificate_on_machine: bool | None = None
    kubernetes_auth: Document | None = None
    monitor: bool | None = None
    versions: Document = field(default_factory=dict)  # an empty one removes the version
    max_pods: int | None = None
    kubelet: Document | None = None  # replaces all kubelet settings
    kubelet_settings: Sequence[str] = ()
    drift_policy: str | None = None
    pause: bool | None = None
    window_start: str | None = None
    window_days: Sequence[str] = ()
    window_minutes: int | None = None
    window_time_zone: str | None = None
    drain: bool | None = None
    drain_timeout: int | None = None
    health_timeout: int | None = None
    vpn: bool | None = None
    server_url: str | None = None
    labels: Sequence[str] = ()
    taints: Sequence[str] = ()
    pool: str | None = None  # empty to leave the pool


class NodeChangeError(OptionError):
    """An option that cannot be applied to a node."""


class UnusedOptionsError(NodeChangeError):
    """Options of an identity that the node's authentication method does not use. `value` is the method."""


def writable_properties(resource: Document) -> Document:
    """Returns the properties of a resource that a caller may write."""
    properties = resource.get("properties", {})
    return {name: copy.deepcopy(properties[name]) for name in WRITABLE if name in properties}


def keep_managed(resource: Document, options: NodeOptions) -> NodeOptions:
    """Returns the options with which a node that is managed because of its pool stays so when it leaves the pool."""
    properties = resource.get("properties", {})
    leaves = options.pool == "" and properties.get("poolName") and options.monitor is None
    if not leaves or "continuousMonitoring" in properties:
        return options
    managed = properties.get("effective", {}).get("continuousMonitoring")
    return replace(options, monitor=True) if managed else options


def stays_managed_text(resource: Document) -> str:
    """Returns what a user is told after `keep_managed` has changed the options."""
    name, pool = resource["name"], resource["properties"]["poolName"]
    return f"{name} stays managed, as in the pool {pool}: it has continuousMonitoring as its own setting now."


def malformed_path(properties: Document) -> str:
    """Returns the first path whose type does not match, so that options cannot be applied, or an empty string."""
    for path in OBJECT_PATHS:
        found: Any = properties
        for name in path.split("."):
            found = found.get(name, {})
            if not isinstance(found, dict):
                return path
    taints = properties.get("nodeConfig", {}).get("taints", [])
    is_valid = isinstance(taints, list) and all(isinstance(each, dict) for each in taints)
    return "" if is_valid else "nodeConfig.taints"


def auth_method_of(properties: Document) -> str:
    """Returns the method of azureAuth. Default: none."""
    return str(properties.get("azureAuth", {}).get("method") or NO_IDENTITY)


def apply_options(properties: Document, options: NodeOptions) -> Document:
    """Returns the properties with the options applied. Other properties are unchanged."""
    changed = copy.deepcopy(properties)
    if options.pool is not None:
        # Sets the pool. Without an identity of its own, the node gets that of the pool.
        if options.pool and changed.get("azureAuth") == {"method": NO_IDENTITY} and not changed.get("poolName"):
            del changed["azureAuth"]
        changed.pop("poolName", None)
        if options.pool:
            changed["poolName"] = options.pool
    if options.monitor is not None:
        changed["continuousMonitoring"] = options.monitor
    _apply_identity(changed, options)
    if options.kubernetes_auth is not None:
        changed["kubernetesAuth"] = dict(options.kubernetes_auth)
    if options.versions:
        versions = {**changed.pop("versions", {}), **options.versions}
        versions = {name: version for name, version in versions.items() if version != ""}
        changed |= {"versions": versions} if versions else {}
    node = _node_config(changed.get("nodeConfig", {}), options)
    if node or "nodeConfig" in changed:  # also when its last setting was removed
        changed["nodeConfig"] = node
    return changed


def _apply_identity(changed: Document, options: NodeOptions) -> None:
    """Sets azureAuth and removes the settings of the previous method: the service rejects a body with two methods."""
    method = _auth_method(changed, options)
    known: dict[str, Document] = {
        SERVICE_PRINCIPAL: {
            "clientId": options.client_id,
            "clientSecret": options.client_secret,
            "certificateOnMachine": options.certificate_on_machine,
            "clientTenant": options.client_tenant,
        },
        MANAGED_IDENTITY: {"clientId": options.client_id, "principalId": options.principal_id},
        ARC: {"principalId": options.principal_id},
    }
    settings = {name: value for name, value in known.get(method, {}).items() if value is not None}
    _require_options_used(options, settings, method)
    if options.auth_method and method == NO_IDENTITY:
        changed["azureAuth"] = {"method": NO_IDENTITY}
        changed.pop("kubernetesAuth", None)  # without an identity, the kubelet cannot use one to join
    elif options.auth_method or settings:
        block = {**changed.get("azureAuth", {}).get(method, {}), **settings}
        if options.client_secret:  # replaces the certificate on the machine
            block.pop("certificateOnMachine", None)
        changed["azureAuth"] = {"method": method, **({method: block} if block else {})}


def _auth_method(properties: Document, options: NodeOptions) -> str:
    """Returns the method after the change. A method from a file or from the service is validated by the service."""
    requested = options.auth_method
    if requested is None:
        return SERVICE_PRINCIPAL if options.client_secret else auth_method_of(properties)
    method = NO_IDENTITY if requested == BOOTSTRAP_TOKEN else requested
    if method not in {*IDENTITIES, NO_IDENTITY}:
        choices = ", ".join((*IDENTITIES, NO_IDENTITY))
        raise NodeChangeError("auth-method", requested, "is unknown", f"Choose one of {choices}.")
    return method


def _require_options_used(options: NodeOptions, settings: Document, method: str) -> None:
    flags = {
        "--client-id": ("clientId", options.client_id),
        "--client-secret-file": ("clientSecret", options.client_secret),
        "--certificate-on-machine": ("certificateOnMachine", options.certificate_on_machine),
        "--client-tenant": ("clientTenant", options.client_tenant),
        "--principal-id": ("principalId", options.principal_id),
    }
    unused = [flag for flag, (name, value) in flags.items() if value is not None and name not in settings]
    if unused:
        raise UnusedOptionsError(
            "auth-method",
            method,
            f"does not use {' and '.join(unused)}",
            "Also set the method: --auth-method servicePrincipal, managedIdentity or arc.",
        )


def _node_config(before: Document, options: NodeOptions) -> Document:
    node = dict(before)
    if options.max_pods is not None:
        node["maxPods"] = options.max_pods
    if options.kubelet is not None:
        node["kubelet"] = options.kubelet
    if options.drift_policy is not None:
        node["driftPolicy"] = options.drift_policy
    policy = _update_policy(node.get("updatePolicy", {}), options)
    if policy != node.get("updatePolicy", {}):
        node["updatePolicy"] = policy
    if options.vpn is not None:
        node["vpn"] = {**node.get("vpn", {}), "enabled": options.vpn}
    if options.server_url is not None:
        rest = {name: value for name, value in node.pop("kubelet", {}).items() if name != "serverURL"}
        kubelet = {**rest, "serverURL": options.server_url} if options.server_url else rest
        node |= {"kubelet": kubelet} if kubelet else {}
    if options.kubelet_settings:
        kubelet = _kubelet(node.pop("kubelet", {}), options.kubelet_settings)
        node |= {"kubelet": kubelet} if kubelet else {}
    if options.labels:
        node["labels"] = _labels(node.get("labels", {}), options.labels)
    if options.taints:
        node["taints"] = _taints(node.get("taints", []), options.taints)
    return node


def _update_policy(before: Document, options: NodeOptions) -> Document:
    changes = {
        "paused": options.pause,
        "drain": options.drain,
        "drainTimeoutSeconds": options.drain_timeout,
        "healthTimeoutSeconds": options.health_timeout,
    }
    policy = {**before, **{name: value for name, value in changes.items() if value is not None}}
    if options.window_start == "":
        return {name: value for name, value in policy.items() if name != "maintenanceWindow"}
    parts = {
        "start": options.window_start,
        "durationMinutes": options.window_minutes,
        "timeZone": options.window_time_zone,
    }
    window: Document = {name: value for name, value in parts.items() if value is not None}
    if options.window_days:
        chosen = {text: text.strip().capitalize() for text in options.window_days if text.lower() != DAILY}
        for text, day in chosen.items():
            if day not in WEEKDAYS:
                hint = f"Use {', '.join(WEEKDAYS)}, or {DAILY}."
                raise NodeChangeError("window-days", text, "is not a weekday", hint)
        window["days"] = [each for each in WEEKDAYS if each in chosen.values()]
    if window:
        merged = {**policy.get("maintenanceWindow", {}), **window}
        policy["maintenanceWindow"] = {name: value for name, value in merged.items() if value != []}
    return policy


def _kubelet(before: Document, changes: Sequence[str]) -> Document:
    """Applies kubelet settings: KEY=VALUE or KEY.NAME=VALUE sets, KEY- removes."""
    kubelet = copy.deepcopy(before)
    for change in changes:
        path, equals, value = change.partition("=")
        removes = not equals and path.endswith("-")
        key, _, name = path.removesuffix("-" if removes else "").partition(".")
        if (
            key not in KUBELET_KEYS
            or not (equals or removes)
            or (bool(name) != (key in KUBELET_MAPS) and not removes)
        ):
            raise _not_a_kubelet_setting(change)
        if removes:
            inner = kubelet.get(key)
            if name and isinstance(inner, dict):
                inner.pop(name, None)
            if not name or not inner:
                kubelet.pop(key, None)
        elif name:
            kubelet[key] = {**kubelet.get(key, {}), name: _json_value(value) if key == EXTRA_CONFIG else value}
        else:
            kubelet[key] = _number(change, value) if key in KUBELET_NUMBERS else value
    return kubelet


def _number(change: str, value: str) -> int:
    try:
        return int(value)
    except ValueError:
        raise _not_a_kubelet_setting(change) from None


def _json_value(text: str) -> Any:
    """Returns the value of JSON text. Other text is a string."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _not_a_kubelet_setting(change: str) -> NodeChangeError:
    keys = [*KUBELET_NUMBERS, *KUBELET_TEXTS, *(f"{key}.NAME" for key in KUBELET_MAPS)]
    hint = f"Use KEY=VALUE to set, or KEY- to remove. Keys: {', '.join(keys)}."
    return NodeChangeError("kubelet-settings", change, "is not a kubelet setting", hint)


def _labels(before: dict[str, str], changes: Sequence[str]) -> dict[str, str]:
    """Applies label arguments as kubectl does: KEY=VALUE sets, KEY- removes."""
    labels = dict(before)
    for change in changes:
        key, equals, value = change.partition("=")
        if equals and key:
            labels[key] = value
        elif change.endswith("-") and change != "-":
            labels.pop(change.removesuffix("-"), None)
        else:
            hint = "Use KEY=VALUE to set a label, or KEY- to remove it."
            raise NodeChangeError("labels", change, "is not a label", hint)
    return labels


def _taints(before: list[Document], changes: Sequence[str]) -> list[Document]:
    """Applies taint arguments as kubectl does: KEY=VALUE:EFFECT or KEY:EFFECT sets, KEY:EFFECT- or KEY- removes."""
    taints = {(each.get("key"), each.get("effect")): each for each in before}
    for change in changes:
        name, _, effect = change.removesuffix("-").partition(":")
        key, equals, value = name.partition("=")
        if change.endswith("-"):
            taints = {
                identity: each
                for identity, each in taints.items()
                if not (identity[0] == key and effect in {"", identity[1]})
            }
        elif key and effect:
            taints[key, effect] = {"key": key, **({"value": value} if equals else {}), "effect": effect}
        else:
            hint = (
                "Use KEY=VALUE:NoSchedule (or PreferNoSchedule, NoExecute) to set a taint, or KEY:EFFECT- to "
                "remove it."
            )
            raise NodeChangeError("taints", change, "is not a taint", hint)
    return list(taints.values())


def conflicting_paths(first: Document, second: Document, change: NodeOptions | NodeChange) -> list[str]:
    """Returns the paths that the change affects and that another client changed between two reads."""
    options = change if isinstance(change, NodeOptions) else None
    changed = change if callable(change) else lambda properties: apply_options(properties, options or NodeOptions())
    ours, theirs = _changes(first, changed), _changes(second, changed)
    return [path for path, change in theirs.items() if ours.get(path) != change]


def _changes(properties: Document, change: NodeChange) -> dict[str, tuple[object, object]]:
    """Returns the values before and after the change, by path."""
    before, after = dict(_leaves(properties)), dict(_leaves(change(properties)))
    paths = [path for path in {**before, **after} if before.get(path) != after.get(path)]
    return {path: (before.get(path), after.get(path)) for path in paths}


def _leaves(document: Document, above: str = "") -> Iterator[tuple[str, object]]:
    for name, value in document.items():
        path = f"{above}.{name}" if above else name
        if isinstance(value, dict):
            yield from _leaves(value, path)
        else:
            yield path, value
