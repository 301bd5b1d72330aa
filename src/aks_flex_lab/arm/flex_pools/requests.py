"""Reads and validates the bodies of requests for flex node pools and Machines. Pure."""

from __future__ import annotations

import math
import re
import time
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from aks_flex_lab.arm.arm_errors import LabArmError, invalid_content
from aks_flex_lab.arm.flex_pools.model import FlexPool, KubernetesSettings, PoolMachine, new_id

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aks_flex_lab.arm.documents import Document

FieldTypes = dict[str, type]
TAINT = re.compile(r"[^=:\s]+(=[^=:\s]*)?:(NoSchedule|PreferNoSchedule|NoExecute)")
COUNT_OR_PERCENT = re.compile(r"([1-9]\d*)(%?)")
FLEX_TYPE = "FlexNodes"
DEFAULT_MAX_PODS = 110
# Labels that AKS owns on a flex node. They are not settings of a pool or a Machine.
OWNED_LABELS = frozenset(f"kubernetes.azure.com/{name}" for name in ("managed", "agentpool", "mode", "nodepool-type"))
SETTINGS: FieldTypes = {
    "orchestratorVersion": str,
    "maxPods": int,
    "nodeLabels": dict,
    "nodeTaints": list,
    "kubeletConfig": dict,
}
POOL_FIELDS: FieldTypes = {**SETTINGS, "type": str, "mode": str, "upgradeSettings": dict, "tags": dict}
MACHINE_FIELDS: FieldTypes = {"kubernetes": dict, "mode": str, "tags": dict}
KUBELET_FIELDS: FieldTypes = {
    **dict.fromkeys(("cpuManagerPolicy", "cpuCfsQuotaPeriod", "topologyManagerPolicy", "seccompDefault"), str),
    **dict.fromkeys(("imageGcHighThreshold", "imageGcLowThreshold"), int),
    **dict.fromkeys(("containerLogMaxSizeMB", "containerLogMaxFiles", "podMaxPids"), int),
    **dict.fromkeys(("cpuCfsQuota", "failSwapOn"), bool),
    "allowedUnsafeSysctls": list,
}
READ_ONLY = frozenset(
    {
        *("eTag", "provisioningState", "currentOrchestratorVersion", "nodeImageVersion", "status", "resourceId"),
        *("nodeName", "powerState"),
    }
)
EMPTY: tuple[object, ...] = (None, False, "", [], {})


def read_fields(section: object, types: FieldTypes, what: str) -> Document:
    """Returns the fields that a section has. Those that AKS does not support here must be empty, as clients send
    them, or are read-only.
    """
    if section is None:
        return {}
    if not isinstance(section, dict):
        raise invalid_content()
    if others := [name for name, value in section.items() if name not in {*types, *READ_ONLY} and value not in EMPTY]:
        raise _invalid(", ".join(sorted(others)), f"Not supported for {what}.")
    given = {name: section[name] for name in types if section.get(name) is not None}
    for name, value in given.items():
        if type(value) is not types[name]:
            raise _invalid(name, f"It must be of type {types[name].__name__}.")
    return given


def read_pool(body: Document, id: str, control_plane: str, known: FlexPool | None) -> FlexPool:  # noqa: A002
    """Returns the pool that a PUT asks for. What the body omits keeps its value."""
    kind = (body.get("properties") or {}).get("type") or (FLEX_TYPE if known else "VirtualMachineScaleSets")
    if kind != FLEX_TYPE:
        raise _invalid("type", f"This Azure serves node pools of type {FLEX_TYPE} only, not {kind}.")
    properties = read_fields(body.get("properties"), POOL_FIELDS, f"a node pool of type {FLEX_TYPE}")
    if properties.get("mode", "User") != "User":
        raise _invalid("mode", f"A node pool of type {FLEX_TYPE} has the mode User.")
    upgrade = read_fields(properties.get("upgradeSettings"), {"maxUnavailable": str}, "an upgrade of this node pool")
    unavailable = upgrade.get("maxUnavailable", known.max_unavailable if known else "1")
    if not COUNT_OR_PERCENT.fullmatch(unavailable):
        raise _invalid("upgradeSettings.maxUnavailable", "It must be a number from 1, or a percentage, as text.")
    before = known.settings if known else KubernetesSettings(control_plane, DEFAULT_MAX_PODS)
    settings = _settings(properties, before, control_plane)
    pool = known or FlexPool(id=id, settings=settings, current_version=settings.orchestrator_version)
    changed = replace(
        pool, settings=settings, max_unavailable=unavailable, tags=_texts("tags", properties.get("tags", pool.tags))
    )
    return changed if changed == pool else replace(changed, etag=new_id())


def read_machine(
    body: Document,
    id: str,  # noqa: A002
    control_plane: str,
    known: PoolMachine | None,
    pool: FlexPool,
) -> PoolMachine:
    """Returns the Machine that a PUT asks for. The eTag changes if the settings differ.

    A new Machine gets what the body omits from the pool; an existing one keeps it.
    """
    properties = read_fields(body.get("properties"), MACHINE_FIELDS, "a machine of a flex node pool")
    kubernetes = read_fields(properties.get("kubernetes"), SETTINGS, "the Kubernetes profile of a machine")
    settings = _settings(kubernetes, known.settings if known else pool.settings, control_plane)
    machine = known or PoolMachine(
        id=id, settings=settings, current_version=settings.orchestrator_version, created=time.time()
    )
    changed = replace(machine, settings=settings, tags=_texts("tags", properties.get("tags", machine.tags)))
    return changed if changed == machine else replace(changed, etag=new_id(), state="Updating")


def read_machine_names(body: Document) -> tuple[str, ...]:
    names = body.get("machineNames")
    if not isinstance(names, list) or not names or not all(isinstance(each, str) for each in names):
        raise _invalid("machineNames", "At least one machine name is required.")
    return tuple(dict.fromkeys(names))


def max_unavailable(pool: FlexPool, machines: int) -> int:
    """Returns how many Machines an upgrade may disturb at the same time: at least one."""
    count, percent = pool.max_unavailable.removesuffix("%"), pool.max_unavailable.endswith("%")
    return max(1, math.ceil(machines * int(count) / 100)) if percent else int(count)


def check_etag(headers: Mapping[str, str], etag: str) -> None:
    """Raises ARM's error if a condition of the request does not hold. `etag` is empty for a missing resource."""
    match, none_match = (
        headers.get(name, "").removeprefix("W/").strip('"') for name in ("if-match", "if-none-match")
    )
    tags = {etag, "*"} if etag else set[str]()
    if (match and match not in tags) or none_match in tags:
        raise LabArmError(412, "PreconditionFailed", "The eTag of the request does not match the resource.")


def version_key(version: str) -> tuple[int, ...]:
    return tuple(int(each) for each in version.split("."))


def _settings(section: Document, before: KubernetesSettings, control_plane: str) -> KubernetesSettings:
    max_pods = section.get("maxPods", before.max_pods)
    if not 10 <= max_pods <= 250:
        raise _invalid("maxPods", "It must be a number between 10 and 250.")
    taints = section.get("nodeTaints", before.node_taints)
    if not all(isinstance(each, str) and TAINT.fullmatch(each) for each in taints):
        raise _invalid("nodeTaints", "Each taint must have the form key=value:Effect.")
    labels = _texts("nodeLabels", section.get("nodeLabels", before.node_labels))
    kubelet = read_fields(section.get("kubeletConfig"), KUBELET_FIELDS, "kubeletConfig")
    return KubernetesSettings(
        orchestrator_version=_version(
            section.get("orchestratorVersion") or before.orchestrator_version, control_plane
        ),
        max_pods=max_pods,
        node_labels={key: value for key, value in labels.items() if key not in OWNED_LABELS},
        node_taints=tuple(taints),
        kubelet_config=kubelet or before.kubelet_config,
    )


def _version(version: str, control_plane: str) -> str:
    if control_plane.startswith(f"{version}."):
        return control_plane  # major.minor: the patch version that the control plane has
    if not re.fullmatch(r"\d+\.\d+\.\d+", version):
        raise _invalid("orchestratorVersion", f"{version!r} is not a supported Kubernetes version.")
    if version_key(version) > version_key(control_plane):
        message = (
            f"Node pool version {version} and control plane version {control_plane} are incompatible. "
            "The node pool version cannot be newer than the control plane version."
        )
        raise LabArmError(400, "NodePoolMcVersionIncompatible", message)
    return version


def _texts(name: str, values: dict[str, Any]) -> dict[str, str]:
    if not all(isinstance(each, str) for each in values.values()):
        raise _invalid(name, "It must be an object of texts.")
    return values


def _invalid(target: str, why: str) -> LabArmError:
    return LabArmError(400, "InvalidParameter", f"The value of parameter {target} is invalid. {why}")
