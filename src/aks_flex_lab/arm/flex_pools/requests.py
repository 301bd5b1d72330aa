"""Reads and validates the bodies of requests for flex node pools and Machines. Pure."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

from msgspec.structs import replace

from aks_flex_lab.arm.arm_errors import LabArmError, invalid_content
from aks_flex_lab.arm.flex_pools.model import FlexPool, KubernetesSettings, PoolMachine, new_etag

if TYPE_CHECKING:
    from aks_flex_lab.arm.documents import Document

POOL_NAME = re.compile(r"[a-z][a-z0-9]{0,11}")
MACHINE_NAME = re.compile(r"[a-zA-Z0-9][-_a-zA-Z0-9]{0,39}")
VERSION = re.compile(r"(\d+)\.(\d+)\.(\d+)")
TAINT = re.compile(r"[^=:\s]+(=[^=:\s]*)?:(NoSchedule|PreferNoSchedule|NoExecute)")
COUNT_OR_PERCENT = re.compile(r"(\d+)(%?)")
FLEX_TYPE = "FlexNodes"
DEFAULT_MAX_PODS = 110
# Labels that AKS owns on a flex node. They are not settings of a pool or a Machine.
OWNED_LABELS = frozenset(f"kubernetes.azure.com/{name}" for name in ("managed", "agentpool", "mode", "nodepool-type"))
POOL_SETTINGS = ("orchestratorVersion", "maxPods", "nodeLabels", "nodeTaints", "kubeletConfig")
MACHINE_SETTINGS = POOL_SETTINGS
POOL_PROPERTIES = frozenset({*POOL_SETTINGS, "type", "mode", "upgradeSettings", "tags", "powerState"})
READ_ONLY = frozenset({"eTag", "provisioningState", "currentOrchestratorVersion", "nodeImageVersion", "status"})
MACHINE_READ_ONLY = READ_ONLY | {"resourceId"}
KUBERNETES_READ_ONLY = frozenset({"nodeName", "currentOrchestratorVersion"})
UPGRADE_SETTINGS = frozenset(
    {"maxUnavailable", "drainTimeoutInMinutes", "nodeSoakDurationInMinutes", "undrainableNodeBehavior"}
)
KUBELET_SETTINGS: dict[str, type | tuple[type, ...]] = {
    **dict.fromkeys(("cpuManagerPolicy", "cpuCfsQuotaPeriod", "topologyManagerPolicy", "seccompDefault"), str),
    **dict.fromkeys(("imageGcHighThreshold", "imageGcLowThreshold"), int),
    **dict.fromkeys(("containerLogMaxSizeMB", "containerLogMaxFiles", "podMaxPids"), int),
    **dict.fromkeys(("cpuCfsQuota", "failSwapOn"), bool),
    "allowedUnsafeSysctls": list,
}


def read_pool(body: Document, id: str, control_plane: str, known: FlexPool | None) -> FlexPool:  # noqa: A002
    """Returns the pool that a PUT asks for. What the body omits keeps its value."""
    properties = _section(body, "properties")
    if not POOL_NAME.fullmatch(id.rpartition("/")[2]):
        raise _invalid(
            "name", "A node pool's name has 1 to 12 lowercase letters and digits, and starts with a letter."
        )
    kind = properties.get("type") or (FLEX_TYPE if known else "VirtualMachineScaleSets")
    if kind != FLEX_TYPE:
        raise _invalid("type", f"This Azure serves node pools of type {FLEX_TYPE} only, not {kind}.")
    if (properties.get("mode") or "User") != "User":
        raise _invalid("mode", f"A node pool of type {FLEX_TYPE} has the mode User.")
    _refuse_others(properties, POOL_PROPERTIES | READ_ONLY, f"a node pool of type {FLEX_TYPE}")
    upgrade = _section(properties, "upgradeSettings")
    _refuse_others(upgrade, UPGRADE_SETTINGS, f"the upgrade of a node pool of type {FLEX_TYPE}")
    _check_upgrade_settings(upgrade)
    before = known.settings if known else KubernetesSettings(control_plane, DEFAULT_MAX_PODS)
    settings = _settings(properties, before, control_plane)
    tags = _texts(properties, "tags", known.tags if known else {})
    upgrade_settings = _given(upgrade) if upgrade or known is None else known.upgrade_settings
    if known is None:
        return FlexPool(
            id=id,
            settings=settings,
            current_version=settings.orchestrator_version,
            etag=new_etag(),
            state="Creating",
            upgrade_settings=upgrade_settings,
            tags=tags,
        )
    changed = replace(known, settings=settings, tags=tags, upgrade_settings=upgrade_settings)
    return changed if changed == known else replace(changed, etag=new_etag())


def read_machine(
    body: Document,
    id: str,  # noqa: A002
    control_plane: str,
    known: PoolMachine | None,
    pool: FlexPool,
    now: float,
) -> PoolMachine:
    """Returns the Machine that a PUT asks for. The eTag changes if the settings differ.

    A new Machine gets what the body omits from the pool; an existing one keeps it.
    """
    if not MACHINE_NAME.fullmatch(id.rpartition("/")[2]):
        raise _invalid("machineName", "A machine's name has 1 to 40 letters, digits, hyphens and underscores.")
    properties = _section(body, "properties")
    _refuse_others(properties, {"kubernetes", "mode", "tags", *MACHINE_READ_ONLY}, "a machine of a flex node pool")
    kubernetes = _section(properties, "kubernetes")
    known_names = {*MACHINE_SETTINGS, *KUBERNETES_READ_ONLY}
    _refuse_others(kubernetes, known_names, "the Kubernetes profile of a machine of a flex node pool")
    settings = _settings(kubernetes, known.settings if known else pool.settings, control_plane)
    tags = _texts(properties, "tags", known.tags if known else {})
    if known is None:
        version = settings.orchestrator_version
        return PoolMachine(
            id=id,
            settings=settings,
            current_version=version,
            etag=new_etag(),
            state="Creating",
            created=now,
            tags=tags,
        )
    changed = replace(known, settings=settings, tags=tags)
    return changed if changed == known else replace(changed, etag=new_etag(), state="Updating")


def read_machine_names(body: Document) -> tuple[str, ...]:
    names = body.get("machineNames")
    if not isinstance(names, list) or not names or not all(isinstance(each, str) for each in names):
        raise _invalid("machineNames", "At least one machine name is required.")
    return tuple(dict.fromkeys(names))


def max_unavailable(pool: FlexPool, machines: int) -> int:
    """Returns how many Machines an upgrade may disturb at the same time: at least one."""
    found = COUNT_OR_PERCENT.fullmatch(str(pool.upgrade_settings.get("maxUnavailable", "1")))
    count = int(found[1]) if found else 1
    return max(1, math.ceil(machines * count / 100) if found and found[2] else count)


def check_etag(if_match: str, if_none_match: str, etag: str) -> None:
    """Raises ARM's error if a condition of the request does not hold. `etag` is empty for a missing resource."""
    wanted = if_match.removeprefix("W/").strip('"')
    if (wanted and wanted not in ({etag, "*"} if etag else ())) or (
        if_none_match and etag and if_none_match.removeprefix("W/").strip('"') in {etag, "*"}
    ):
        raise LabArmError(412, "PreconditionFailed", "The eTag of the request does not match the resource.")


def version_key(version: str) -> tuple[int, ...]:
    return tuple(int(each) for each in version.split("."))


def _settings(section: Document, before: KubernetesSettings, control_plane: str) -> KubernetesSettings:
    version = section.get("orchestratorVersion") or before.orchestrator_version
    max_pods = section.get("maxPods")
    if max_pods is None:
        max_pods = before.max_pods
    if not isinstance(max_pods, int) or isinstance(max_pods, bool) or not 10 <= max_pods <= 250:
        raise _invalid("maxPods", "It must be a number between 10 and 250.")
    labels = _texts(section, "nodeLabels", before.node_labels)
    taints = section.get("nodeTaints")
    taints = list(before.node_taints) if taints is None else taints
    if not isinstance(taints, list) or not all(isinstance(each, str) and TAINT.fullmatch(each) for each in taints):
        raise _invalid("nodeTaints", "Each taint must have the form key=value:Effect.")
    kubelet = _section(section, "kubeletConfig")
    _check_kubelet_config(kubelet)
    return KubernetesSettings(
        orchestrator_version=_version(version, control_plane),
        max_pods=max_pods,
        node_labels={key: value for key, value in labels.items() if key not in OWNED_LABELS},
        node_taints=tuple(taints),
        kubelet_config=_given(kubelet) if kubelet else before.kubelet_config,
    )


def _version(version: object, control_plane: str) -> str:
    if isinstance(version, str) and control_plane.startswith(f"{version}."):
        return control_plane  # major.minor: the patch version that the control plane has
    if not isinstance(version, str) or not VERSION.fullmatch(version):
        raise _invalid("orchestratorVersion", f"{version!r} is not a supported Kubernetes version.")
    if version_key(version) > version_key(control_plane):
        message = (
            f"Node pool version {version} and control plane version {control_plane} are incompatible. "
            "The node pool version cannot be newer than the control plane version."
        )
        raise LabArmError(400, "NodePoolMcVersionIncompatible", message)
    return version


def _check_upgrade_settings(upgrade: Document) -> None:
    unavailable = upgrade.get("maxUnavailable")
    if unavailable is not None:
        found = COUNT_OR_PERCENT.fullmatch(unavailable) if isinstance(unavailable, str) else None
        if found is None or int(found[1]) == 0:
            raise _invalid("upgradeSettings.maxUnavailable", "It must be a number from 1, or a percentage, as text.")
    for name in ("drainTimeoutInMinutes", "nodeSoakDurationInMinutes"):
        if upgrade.get(name) is not None and (not isinstance(upgrade[name], int) or not 0 <= upgrade[name] <= 1440):
            raise _invalid(f"upgradeSettings.{name}", "It must be a number of minutes up to 1440.")
    if (upgrade.get("undrainableNodeBehavior") or "Schedule") not in {"Schedule", "Cordon"}:
        raise _invalid("upgradeSettings.undrainableNodeBehavior", "It must be Schedule or Cordon.")


def _check_kubelet_config(kubelet: Document) -> None:
    _refuse_others(kubelet, frozenset(KUBELET_SETTINGS), "kubeletConfig")
    for name, value in kubelet.items():
        kind = KUBELET_SETTINGS.get(name, object)
        if value is not None and (not isinstance(value, kind) or (kind is int and isinstance(value, bool))):
            raise _invalid(f"kubeletConfig.{name}", "The value has the wrong type.")


def _refuse_others(section: Document, known: frozenset[str] | set[str], what: str) -> None:
    """Refuses properties that AKS does not support here. Empty values count as absent, as clients send them."""
    if others := sorted(name for name, value in section.items() if name not in known and value not in _EMPTY):
        raise _invalid(", ".join(others), f"Not supported for {what}.")


_EMPTY: tuple[object, ...] = (None, False, "", [], {})


def _section(body: Document, name: str) -> Document:
    found = body.get(name)
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise invalid_content()
    return found


def _texts(section: Document, name: str, before: dict[str, str]) -> dict[str, str]:
    found = section.get(name)
    if found is None:
        return before
    if not isinstance(found, dict) or not all(isinstance(each, str) for each in found.values()):
        raise _invalid(name, "It must be an object of texts.")
    return dict(found)


def _given(section: Document) -> Document:
    return {name: value for name, value in sorted(section.items()) if value is not None}


def _invalid(target: str, why: str) -> LabArmError:
    return LabArmError(400, "InvalidParameter", f"The value of parameter {target} is invalid. {why}")
