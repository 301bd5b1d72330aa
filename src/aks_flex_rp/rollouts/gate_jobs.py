"""Jobs and pods of a Job gate: the manifest of a Job that is pinned to a node, and what a finished one says."""

from __future__ import annotations

import hashlib
from copy import deepcopy
from typing import TYPE_CHECKING, Any

from aks_flex_rp.rollouts.gate_run import shown

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aks_flex_rp.clusters.client import KubeObject
    from aks_flex_rp.rollouts.gate_run import GateRun
    from aks_flex_rp.rollouts.gate_specs import JobGate

GATE_LABEL = "flex.aks.azure.com/rollout-gate"  # ID of the run
ROLLOUT, NODE = "flex.aks.azure.com/rollout", "flex.aks.azure.com/node"  # annotations
KEEP_SECONDS = 600  # after the time limit of the gate, for a service that was down when it passed
MAX_LOG_LENGTH = 500


def job_name(run: GateRun, node: str) -> str:
    """Returns the name of the Job for a node: the same after a restart, so that no second one is created."""
    return f"flex-gate-{hashlib.sha256(f'{run.id}/{node}'.encode()).hexdigest()[:24]}"


def job_manifest(run: GateRun, spec: JobGate, node: str, seconds: float) -> KubeObject:
    template = deepcopy(spec.template)
    metadata, pod = template.setdefault("metadata", {}), template["spec"]
    label = {GATE_LABEL: run.id}
    metadata["labels"] = {**metadata.get("labels", {}), **label}
    pod["restartPolicy"] = "Never"
    pod.setdefault("automountServiceAccountToken", False)
    pod["tolerations"] = [*(pod.get("tolerations") or []), {"operator": "Exists"}]
    pod["affinity"] = {**(pod.get("affinity") or {}), "nodeAffinity": _pinned_to(node)}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": job_name(run, node),
            "labels": label,
            "annotations": {ROLLOUT: f"{run.pool}/{run.rollout} wave {run.wave} {run.gate.name}", NODE: node},
        },
        "spec": {
            "backoffLimit": 0,
            "activeDeadlineSeconds": max(1, int(seconds)),
            "ttlSecondsAfterFinished": int(seconds) + KEEP_SECONDS,
            "template": template,
        },
    }


def _pinned_to(node: str) -> KubeObject:
    field = {"key": "metadata.name", "operator": "In", "values": [node]}
    terms = [{"matchFields": [field]}]
    return {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}


def is_succeeded(job: KubeObject) -> bool:
    return _condition(job, "Complete") is not None


def failure(job: KubeObject) -> str:
    """Returns why a Job has failed, or nothing if it has not."""
    found = _condition(job, "Failed")
    return str(found.get("message") or found.get("reason") or "failed") if found else ""


def _condition(job: KubeObject, kind: str) -> KubeObject | None:
    conditions = job.get("status", {}).get("conditions") or ()
    return next((each for each in conditions if each["type"] == kind and each["status"] == "True"), None)


def failed_container(pod: KubeObject) -> tuple[str, str]:
    """Returns the name of the container that failed, and its exit code and reason as text."""
    for status in _containers(pod):
        ended = status.get("state", {}).get("terminated") or {}
        if ended.get("exitCode"):
            reason = f" ({ended['reason']})" if ended.get("reason") else ""
            return str(status["name"]), f"exit code {ended['exitCode']}{reason}"
    return "", ""


def waiting_reason(pod: KubeObject) -> str:
    """Returns what a pod that has not ended waits for."""
    for status in _containers(pod):
        waiting = status.get("state", {}).get("waiting") or {}
        if waiting.get("reason") not in {None, "ContainerCreating", "PodInitializing"}:
            return shown(f"container {status['name']}: {waiting['reason']}: {waiting.get('message', '')}", 300)
    for condition in pod.get("status", {}).get("conditions") or ():
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return shown(f"not scheduled: {condition.get('message', '')}", 300)
    return f"its pod is {pod.get('status', {}).get('phase', 'Pending')}"


def _containers(pod: KubeObject) -> Iterator[dict[str, Any]]:
    status = pod.get("status", {})
    yield from status.get("initContainerStatuses") or ()
    yield from status.get("containerStatuses") or ()


def log_end(text: str) -> str:
    """Returns the last lines of a log."""
    lines = shown(text, len(text) + 1)
    return lines if len(lines) <= MAX_LOG_LENGTH else f"…{lines[-MAX_LOG_LENGTH + 1 :]}"
