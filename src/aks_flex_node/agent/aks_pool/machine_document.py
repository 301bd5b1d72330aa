"""The Machine resource of a flex node pool: parses responses, builds requests, and compares and applies settings.

Pure functions. The shape is that of API version 2026-08-02-preview.
"""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Any

from aks_flex_node.agent.config.pool_names import split_labels
from aks_flex_node.errors import FlexError
from aks_flex_node.lean_dataclass import frozen

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from aks_flex_node.settings.models import NodeConfig, Taint

Document = dict[str, Any]

UNFINISHED = frozenset({"creating", "updating", "accepted", "inprogress"})  # provisioning states
OWNER_TAG = "aks-flex-node-machine"  # of a Machine: the host that it belongs to, as a hash of its machine ID
AKS_LABEL_PREFIX = "kubernetes.azure.com/"  # of labels that AKS itself sets; no settings of a Machine
# Fields of a Machine's `kubeletConfig` and our settings below node.kubelet.
_OWN_KUBELET_KEYS = {
    "imageGcHighThreshold": "imageGCHighThreshold",
    "imageGcLowThreshold": "imageGCLowThreshold",
    "podMaxPids": "podPidsLimit",
}
# Fields of a Machine's `kubeletConfig` and fields of the KubeletConfiguration.
_EXTRA_KUBELET_KEYS = {
    "cpuManagerPolicy": "cpuManagerPolicy",
    "cpuCfsQuota": "cpuCFSQuota",
    "cpuCfsQuotaPeriod": "cpuCFSQuotaPeriod",
    "topologyManagerPolicy": "topologyManagerPolicy",
    "allowedUnsafeSysctls": "allowedUnsafeSysctls",
    "failSwapOn": "failSwapOn",
    "containerLogMaxFiles": "containerLogMaxFiles",
    "evictionMaxPodGracePeriodInSeconds": "evictionMaxPodGracePeriod",
}
_EVICTION_SIGNALS = {
    "memoryAvailable": "memory.available",
    "nodeFsAvailable": "nodefs.available",
    "nodeFsInodesFree": "nodefs.inodesFree",
}


@frozen
class MachineSettings:
    """The desired settings of one node. None: the Machine does not set it."""

    version: str = ""  # of Kubernetes
    max_pods: int | None = None
    labels: Mapping[str, str] | None = None
    taints: tuple[str, ...] | None = None  # `key=value:Effect`
    kubelet: Mapping[str, Any] = field(default_factory=dict)  # `kubeletConfig`, as in the API


@frozen
class PoolMachine:
    """A Machine resource as Azure returns it."""

    name: str
    etag: str  # changes with the settings, not with the status
    settings: MachineSettings
    provisioning_state: str = ""
    node_name: str = ""
    vm_state: str = ""  # Running, Deleted, or empty
    error: str = ""  # why AKS could not provision it
    tags: Mapping[str, str] = field(default_factory=dict)
    initialization_taints: tuple[str, ...] = ()  # set by others; a PUT without them would remove them

    @property
    def is_unfinished(self) -> bool:
        """Whether AKS is creating or changing it."""
        return self.provisioning_state.lower() in UNFINISHED

    @property
    def is_failed(self) -> bool:
        return self.provisioning_state.lower() == "failed"

    @property
    def owner(self) -> str:
        """The host that the Machine belongs to, as a hash; empty if it was registered without one."""
        return self.tags.get(OWNER_TAG, "")


def parse_machine(document: Mapping[str, Any]) -> PoolMachine:
    """Parses a Machine. Raises FlexError `machine-document-invalid` for a response that is not one."""
    properties = document.get("properties")
    if not isinstance(properties, dict) or not isinstance(document.get("name"), str):
        raise machine_invalid_error("it has no `name` and no `properties`")
    profile, status = object_at(properties, "kubernetes"), object_at(properties, "status")
    failure = object_at(status, "provisioningError")
    labels, taints, most = profile.get("nodeLabels"), profile.get("nodeTaints"), profile.get("maxPods")
    if not isinstance(labels, dict | None) or not isinstance(taints, list | None) or not isinstance(most, int | None):
        raise machine_invalid_error("its labels, taints or maximum number of pods have another type")
    desired = text_at(profile, "orchestratorVersion").removeprefix("v")
    current = text_at(profile, "currentOrchestratorVersion").removeprefix("v")
    return PoolMachine(
        document["name"],
        text_at(properties, "eTag"),
        MachineSettings(
            (current if satisfies(current, desired) else desired),
            most,
            None if labels is None else {str(key): str(value) for key, value in labels.items()},
            None if taints is None else tuple(str(each) for each in taints),
            object_at(profile, "kubeletConfig"),
        ),
        text_at(properties, "provisioningState"),
        text_at(profile, "nodeName"),
        text_at(status, "vmState"),
        text_at(failure, "message") or text_at(failure, "code"),
        {str(name): str(value) for name, value in object_at(properties, "tags").items()},
        tuple(str(each) for each in profile.get("nodeInitializationTaints") or ()),
    )


def has_patch(version: str) -> bool:
    return version.count(".") >= 2


def satisfies(version: str, desired: str) -> bool:
    """Returns whether a version is the desired one, or a patch version of the desired minor version."""
    return version == desired or (not has_patch(desired) and version.startswith(f"{desired}."))


def object_at(parent: Mapping[str, Any], name: str) -> Document:
    value = parent.get(name)
    return value if isinstance(value, dict) else {}


def text_at(parent: Mapping[str, Any], name: str) -> str:
    return str(parent.get(name) or "")


def machine_invalid_error(cause: str) -> FlexError:
    return FlexError(
        "machine-document-invalid",
        f"The response of Azure Resource Manager is not a Machine of a node pool: {cause}.",
        "Check `azure.resourceManager` and the proxy: another server may have answered.",
        retryable=True,
    )


def node_settings(config: NodeConfig) -> MachineSettings:
    """Returns the settings that a node registers: those of its configuration."""
    return MachineSettings(
        config.kubernetes.version or "",
        config.node.max_pods,
        _own_labels(config.node.labels),
        tuple(format_taint(each) for each in config.node.taints),
    )


def format_taint(taint: Taint) -> str:
    return f"{taint.key}={taint.value}:{taint.effect}" if taint.value else f"{taint.key}:{taint.effect}"


def machine_body(settings: MachineSettings, known: PoolMachine | None = None, owner: str = "") -> Document:
    """Builds the body of a PUT, with the host that the Machine belongs to. Keeps what a node does not set, which a
    PUT without it would remove: the kubelet settings, initialization taints and tags of an existing Machine.
    """
    profile: Document = {"orchestratorVersion": settings.version}
    if settings.max_pods is not None:
        profile["maxPods"] = settings.max_pods
    profile["nodeLabels"] = dict(settings.labels or {})
    profile["nodeTaints"] = list(settings.taints or ())
    kubelet = settings.kubelet or (known.settings.kubelet if known else {})
    if kubelet:
        profile["kubeletConfig"] = dict(kubelet)
    if known and known.initialization_taints:
        profile["nodeInitializationTaints"] = list(known.initialization_taints)
    properties: Document = {"kubernetes": profile}
    if tags := {**(known.tags if known else {}), **({OWNER_TAG: owner} if owner else {})}:
        properties["tags"] = tags
    return {"properties": properties}


def differs(settings: MachineSettings, machine: PoolMachine) -> bool:
    """Returns whether the Machine has other settings than a node wants to register."""
    known = machine.settings
    return (
        not satisfies(settings.version, known.version)
        or (settings.max_pods is not None and settings.max_pods != known.max_pods)
        or _own_labels(settings.labels) != _own_labels(known.labels)
        or _taint_set(settings.taints) != _taint_set(known.taints)
    )


def _own_labels(labels: Mapping[str, str] | None) -> dict[str, str]:
    return {key: value for key, value in (labels or {}).items() if not key.startswith(AKS_LABEL_PREFIX)}


def _taint_set(taints: Iterable[str] | None) -> frozenset[str]:
    return frozenset(each.replace("=:", ":") for each in taints or ())  # `key=:Effect` is `key:Effect`


def with_machine_settings(config: Mapping[str, Any], settings: MachineSettings, *, complete: bool = True) -> Document:
    """Returns a configuration document with the settings of a Machine.

    A Machine without labels or taints removes them if `complete` is set. Otherwise it sets only what it has: that is
    for the first join of a machine, when the rest comes from the pool. Labels of AKS itself are kept. So is a
    version whose patch version the Machine leaves open.
    """
    node = dict(config.get("node") or {})
    if settings.max_pods is not None:
        node["maxPods"] = settings.max_pods
    if complete or settings.labels is not None:
        known = node.get("labels") or {}
        aks = {key: value for key, value in known.items() if key.startswith(AKS_LABEL_PREFIX)}
        own, _ = split_labels(settings.labels or {})  # others are left to the cluster
        node["labels"] = {**(aks if complete else known), **own}
    if complete or settings.taints is not None:
        node["taints"] = list(settings.taints or ())
    if settings.kubelet:
        node["kubelet"] = with_kubelet_settings(node.get("kubelet") or {}, settings.kubelet)
    changed = {**config, "node": node}
    kubernetes = config.get("kubernetes") or {}
    if settings.version and not satisfies(text_at(kubernetes, "version"), settings.version):
        changed["kubernetes"] = {**kubernetes, "version": settings.version}
    return changed


def with_kubelet_settings(kubelet: Mapping[str, Any], settings: Mapping[str, Any]) -> Document:
    """Returns the section node.kubelet with a Machine's `kubeletConfig`."""
    changed = dict(kubelet)
    changed |= {ours: settings[name] for name, ours in _OWN_KUBELET_KEYS.items() if settings.get(name) is not None}
    requested = object_at(settings, "kubeReserved")
    reserved = {"cpu": f"{cpu}m"} if (cpu := requested.get("cpuMillicores")) is not None else {}
    if (memory := requested.get("memoryMB")) is not None:
        reserved["memory"] = f"{memory}Mi"
    if reserved:
        changed["kubeReserved"] = {**(changed.get("kubeReserved") or {}), **reserved}
    if hard := _signals(object_at(settings, "hardEvictionThreshold")):
        changed["evictionHard"] = {**(changed.get("evictionHard") or {}), **hard}
    # Fields of the KubeletConfiguration for the settings that are not settings of ours.
    extra = {ours: settings[name] for name, ours in _EXTRA_KUBELET_KEYS.items() if settings.get(name) is not None}
    if (size := settings.get("containerLogMaxSizeMB")) is not None:
        extra["containerLogMaxSize"] = f"{size}Mi"
    if settings.get("seccompDefault") not in (None, "RuntimeDefault"):  # that is what each node has
        extra["seccompDefault"] = False
    if soft := _signals(object_at(settings, "softEvictionThreshold")):
        extra["evictionSoft"] = soft
    if grace := _signals(object_at(settings, "softEvictionGracePeriod")):
        extra["evictionSoftGracePeriod"] = grace
    if extra:
        changed["extraConfig"] = {**(changed.get("extraConfig") or {}), **extra}
    return changed


def _signals(thresholds: Mapping[str, Any]) -> dict[str, str]:
    return {ours: str(thresholds[name]) for name, ours in _EVICTION_SIGNALS.items() if thresholds.get(name)}
