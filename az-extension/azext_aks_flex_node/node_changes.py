"""Applies the options of `create` and `update` to a node's properties: a document in, a document out.

The meanings are those of `aks-flex-rp node create` and `update`.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from azure.cli.core.azclierror import ArgumentUsageError, InvalidArgumentValueError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    Document = dict[str, Any]

WRITABLE = ("continuousMonitoring", "azureAuth", "kubernetesAuth", "versions", "nodeConfig")
TOKEN, PRINCIPAL, MANAGED, ARC = "bootstrapToken", "servicePrincipal", "managedIdentity", "arc"
AZURE_AUTH_METHODS = (TOKEN, PRINCIPAL, MANAGED, ARC)
KUBERNETES_AUTH_METHODS = (TOKEN, "exec", "certificate")
OBJECT_PATHS = (
    *(f"azureAuth.{method}" for method in (PRINCIPAL, MANAGED, ARC)),
    *(f"nodeConfig.{name}" for name in ("labels", "kubelet", "updatePolicy", "vpn")),
    "kubernetesAuth",
    "versions",
)


@dataclass(frozen=True)
class NodeOptions:
    """What was said, and nothing that was not."""

    auth_method: str | None = None
    client_id: str | None = None
    client_secret: str | None = field(default=None, repr=False)
    client_tenant: str | None = None
    principal_id: str | None = None
    certificate_on_machine: bool | None = None
    kubernetes_auth: str | None = None
    monitor: bool | None = None
    versions: Document = field(default_factory=dict)
    max_pods: int | None = None
    kubelet: Document | None = None
    drift_policy: str | None = None
    pause: bool | None = None
    vpn: bool | None = None
    server_url: str | None = None
    labels: Sequence[str] = ()
    taints: Sequence[str] = ()


def writable_properties(resource: Document) -> Document:
    """What a caller may write of a resource that was read."""
    properties = resource.get("properties", {})
    return {name: copy.deepcopy(properties[name]) for name in WRITABLE if name in properties}


def malformed_path(properties: Document) -> str:
    """The first place where something else stands than words can be added to, if there is one."""
    for path in OBJECT_PATHS:
        found: Any = properties
        for name in path.split("."):
            found = found.get(name, {})
            if not isinstance(found, dict):
                return path
    taints = properties.get("nodeConfig", {}).get("taints", [])
    well = isinstance(taints, list) and all(isinstance(each, dict) for each in taints)
    return "" if well else "nodeConfig.taints"


def auth_method_of(properties: Document) -> str:
    method = properties.get("azureAuth", {}).get("method", "none")
    return TOKEN if method == "none" else str(method)


def apply_options(properties: Document, said: NodeOptions) -> Document:
    """The properties with all that was said; what was not said stays as it is."""
    made = copy.deepcopy(properties)
    if said.monitor is not None:
        made["continuousMonitoring"] = said.monitor
    _identity(made, said)
    if said.kubernetes_auth is not None:
        azure = said.kubernetes_auth != TOKEN
        made["kubernetesAuth"] = {"useAzureAuth": azure, "method": said.kubernetes_auth}
    if said.versions:
        made["versions"] = {**made.get("versions", {}), **said.versions}
    node = _node(made.get("nodeConfig", {}), said)
    if node or "nodeConfig" in made:  # with the last of its settings gone, too
        made["nodeConfig"] = node
    return made


def _identity(made: Document, said: NodeOptions) -> None:
    """Another method leaves nothing of the earlier one: a body with two is refused."""
    auth = made.get("azureAuth", {})
    method = said.auth_method or (PRINCIPAL if said.client_secret else auth_method_of(made))
    known: dict[str, Document] = {
        PRINCIPAL: {
            "clientId": said.client_id,
            "clientSecret": said.client_secret,
            "certificateOnMachine": said.certificate_on_machine,
            "clientTenant": said.client_tenant,
        },
        MANAGED: {"clientId": said.client_id, "principalId": said.principal_id},
        ARC: {"principalId": said.principal_id},
    }
    given = {name: value for name, value in known.get(method, {}).items() if value is not None}
    _require_options_used(said, given, method)
    if said.auth_method == TOKEN:
        made["azureAuth"] = {"method": "none"}
        made.pop("kubernetesAuth", None)
    elif said.auth_method or given:
        block = {**auth.get(method, {}), **given}
        if said.client_secret:  # it is by this that it signs in from now on
            block.pop("certificateOnMachine", None)
        made["azureAuth"] = {"method": method, **({method: block} if block else {})}


def _require_options_used(said: NodeOptions, given: Document, method: str) -> None:
    words = {
        "--client-id": ("clientId", said.client_id),
        "--client-secret-file": ("clientSecret", said.client_secret),
        "--certificate-on-machine": ("certificateOnMachine", said.certificate_on_machine),
        "--client-tenant": ("clientTenant", said.client_tenant),
        "--principal-id": ("principalId", said.principal_id),
    }
    lost = [flag for flag, (name, value) in words.items() if value is not None and name not in given]
    if lost:
        raise ArgumentUsageError(
            f"A node whose method is {method} has no use for {' and '.join(lost)}.",
            "Say the method, too: --auth-method servicePrincipal, managedIdentity or arc.",
        )


def _node(before: Document, said: NodeOptions) -> Document:
    node = dict(before)
    if said.max_pods is not None:
        node["maxPods"] = said.max_pods
    if said.kubelet is not None:
        node["kubelet"] = said.kubelet
    if said.drift_policy is not None:
        node["driftPolicy"] = said.drift_policy
    if said.pause is not None:
        node["updatePolicy"] = {**node.get("updatePolicy", {}), "paused": said.pause}
    if said.vpn is not None:
        node["vpn"] = {**node.get("vpn", {}), "enabled": said.vpn}
    if said.server_url is not None:
        rest = {name: value for name, value in node.pop("kubelet", {}).items() if name != "serverURL"}
        kubelet = {**rest, "serverURL": said.server_url} if said.server_url else rest
        node |= {"kubelet": kubelet} if kubelet else {}
    if said.labels:
        node["labels"] = _labels(node.get("labels", {}), said.labels)
    if said.taints:
        node["taints"] = _taints(node.get("taints", []), said.taints)
    return node


def _labels(before: dict[str, str], words: Sequence[str]) -> dict[str, str]:
    """As kubectl has it: KEY=VALUE sets, KEY- removes."""
    labels = dict(before)
    for word in words:
        key, equals, value = word.partition("=")
        if equals and key:
            labels[key] = value
        elif word.endswith("-") and word != "-":
            labels.pop(word.removesuffix("-"), None)
        else:
            raise InvalidArgumentValueError(
                f"--labels: {word!r} is no label.", "Write KEY=VALUE, or KEY- to remove one."
            )
    return labels


def _taints(before: list[Document], words: Sequence[str]) -> list[Document]:
    """As kubectl has it: KEY=VALUE:EFFECT or KEY:EFFECT sets, KEY:EFFECT- or KEY- removes."""
    taints = {(each.get("key"), each.get("effect")): each for each in before}
    for word in words:
        name, _, effect = word.removesuffix("-").partition(":")
        key, equals, value = name.partition("=")
        if word.endswith("-"):
            taints = {place: each for place, each in taints.items() if not _matches_taint(place, key, effect)}
        elif key and effect:
            taints[key, effect] = {"key": key, **({"value": value} if equals else {}), "effect": effect}
        else:
            raise InvalidArgumentValueError(
                f"--taints: {word!r} is no taint.",
                "Write KEY=VALUE:NoSchedule (or PreferNoSchedule, NoExecute); KEY:EFFECT- removes one.",
            )
    return list(taints.values())


def _matches_taint(place: tuple[Any, Any], key: str, effect: str) -> bool:
    return place[0] == key and effect in {"", place[1]}


def conflicting_paths(first: Document, second: Document, said: NodeOptions) -> list[str]:
    """What others changed, between two readings, of what these words are about: by path."""
    ours, theirs = _changes(first, said), _changes(second, said)
    return [path for path, change in theirs.items() if ours.get(path) != change]


def _changes(properties: Document, said: NodeOptions) -> dict[str, tuple[object, object]]:
    """By path: what is there, and what is wanted instead."""
    before, after = dict(_leaves(properties)), dict(_leaves(apply_options(properties, said)))
    paths = [path for path in {**before, **after} if before.get(path) != after.get(path)]
    return {path: (before.get(path), after.get(path)) for path in paths}


def _leaves(document: Document, above: str = "") -> Iterator[tuple[str, object]]:
    for name, value in document.items():
        path = f"{above}.{name}" if above else name
        if isinstance(value, dict):
            yield from _leaves(value, path)
        else:
            yield path, value
