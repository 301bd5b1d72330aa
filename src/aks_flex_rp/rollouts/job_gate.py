"""Job gate: runs a Job that is pinned to each updated node of a wave, and passes when all have succeeded.

The service may create Jobs only where an administrator of the cluster has applied the manifest with the RoleBinding.
That RoleBinding is needed even if the service has the permissions of an administrator: otherwise a person who may
create roll-outs could run pods in every namespace.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from aks_flex_node.errors import FlexError
from aks_flex_rp.clusters.client import ApiRefused
from aks_flex_rp.clusters.node_controller import NODES
from aks_flex_rp.rollouts.gate_run import GateAnswer, GateRefusedError, GateUnavailableError, repeat, shown
from aks_flex_rp.time_limit import end_task

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from aks_flex_rp.clusters.client import KubeClient, KubeObject
    from aks_flex_rp.rollouts.gate_run import GateProgress, GateRun
    from aks_flex_rp.rollouts.gate_specs import JobGate

MOST_AT_A_TIME = 20  # Jobs
PAUSE_SECONDS = 2.0
LOOKS_PER_POD = 5  # the pod of a running Job is read at each fifth look at the Job
LOG_LINES, LOG_BYTES = "20", "16384"
GRANT = "aks-flex-rp-rollout-gates"  # the RoleBinding of the manifest
MANIFEST = "packaging/kubernetes/22-rbac-rollout-gates.yaml"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
BACKGROUND = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Background"}

T = TypeVar("T")
log = logging.getLogger(__name__)


class JobFailedError(Exception):
    """A Job has failed, so the gate fails."""


def grant_remedy(namespace: str) -> str:
    return f"An administrator of the cluster allows it with `kubectl apply -n {namespace} -f {MANIFEST}`."


async def asked(work: Awaitable[T], verb: str, namespace: str) -> T:
    """Returns the response of the cluster. Translates its errors; `verb` is what the service asks for."""
    try:
        return await work
    except ApiRefused as refusal:
        if refusal.status == 429 or refusal.status >= 500:
            raise GateUnavailableError(f"The cluster cannot {verb} now: {refusal.message}.") from None
        if refusal.status == 403:
            raise GateRefusedError(
                f"The service may not {verb} in the namespace {namespace}. {grant_remedy(namespace)} The cluster "
                f"said: {refusal.message}."
            ) from None
        raise GateRefusedError(f"The cluster refused to {verb}: {refusal.message}.") from None
    except FlexError as error:
        raise GateUnavailableError(str(error)) from None


async def check_grant(client: KubeClient, namespace: str) -> None:
    """Raises GateRefusedError if no administrator has allowed Jobs of gates in the namespace."""
    path = f"{RBAC}/namespaces/{namespace}/rolebindings/{GRANT}"
    if await asked(client.find(path), f"get rolebindings {GRANT}", namespace) is None:
        raise GateRefusedError(
            f"The namespace {namespace} does not exist, or does not allow Jobs of gates: it has no RoleBinding "
            f"{GRANT}. {grant_remedy(namespace)}"
        )


class JobGateRunner:
    def __init__(
        self, client: Callable[[str], KubeClient], clock: Callable[[], float], pause: float = PAUSE_SECONDS
    ) -> None:
        """Creates the runner. `client` returns the client of a cluster, or raises FlexError."""
        self._client, self._clock, self._pause = client, clock, pause

    async def run(self, run: GateRun, spec: JobGate, progress: GateProgress) -> GateAnswer:
        jobs = NodeJobs(run, spec, progress, self._client, self._clock, self._pause)
        try:
            await repeat(jobs.check, progress, self._pause)
            await jobs.run_all()
        except JobFailedError as error:
            return GateAnswer.of(False, str(error))
        return GateAnswer.of(True, jobs.result())

    async def clean_up(self, run: GateRun, spec: JobGate) -> None:
        """Deletes the Jobs of a run with their pods. What remains, the cluster deletes after its time to live."""
        selector = {"labelSelector": f"{GATE_LABEL}={run.id}"}
        try:
            await self._client(run.cluster).request("DELETE", _jobs(spec), BACKGROUND, parameters=selector)
        except (ApiRefused, FlexError) as error:
            log.warning("The Jobs of the gate %s of roll-out %s remain: %s", run.gate.name, run.rollout, error)

    async def check(self, run: GateRun, spec: JobGate) -> None:
        """Lets the cluster validate the Job without creating it. Raises GateRefusedError if it refuses it."""
        with suppress(GateUnavailableError, FlexError):
            client = self._client(run.cluster)
            await check_grant(client, spec.namespace)
            body = job_manifest(run, spec, "node", run.gate.timeout_seconds)
            work = client.request("POST", _jobs(spec), body, parameters={"dryRun": "All"})
            await asked(work, "create jobs", spec.namespace)


def _jobs(spec: JobGate) -> str:
    return f"/apis/batch/v1/namespaces/{spec.namespace}/jobs"


@dataclass
class NodeJobs:
    """The Jobs of one run."""

    run: GateRun
    spec: JobGate
    progress: GateProgress
    cluster_client: Callable[[str], KubeClient]
    clock: Callable[[], float]
    pause: float
    succeeded: int = 0
    gone: list[str] = field(default_factory=list)  # nodes that left the cluster
    waits: dict[str, str] = field(default_factory=dict)  # what the running Jobs wait for, by node

    @property
    def client(self) -> KubeClient:
        try:
            return self.cluster_client(self.run.cluster)
        except FlexError as error:
            raise GateUnavailableError(str(error)) from None

    async def check(self) -> bool:
        await check_grant(self.client, self.spec.namespace)
        return True

    async def run_all(self) -> None:
        """Runs all Jobs, some at a time. Raises the error of the first that fails; the others keep running."""
        self._set_progress_text()
        nodes = iter(self.run.nodes)
        count = min(MOST_AT_A_TIME, len(self.run.nodes))
        workers = [asyncio.create_task(self._run_each(nodes)) for _ in range(count)]
        try:
            for done in asyncio.as_completed(workers):
                await done
        finally:
            for worker in workers:
                await end_task(worker)

    def result(self) -> str:
        gone = f" {len(self.gone)} nodes left the cluster: {', '.join(self.gone)}." if self.gone else ""
        return f"The Job succeeded on {self.succeeded} of {len(self.run.nodes)} nodes.{gone}"

    async def _run_each(self, nodes: Iterator[str]) -> None:
        for node in nodes:
            await self._run_on(node)
            self.waits.pop(node, None)
            self._set_progress_text()

    async def _run_on(self, node: str) -> None:
        looks = 0

        async def ended() -> bool | None:
            nonlocal looks
            looks += 1
            return await self._look(node, read_pod=looks % LOOKS_PER_POD == 0)

        if await repeat(lambda: self._started(node), self.progress, self.pause) and await repeat(
            ended, self.progress, self.pause
        ):
            self.succeeded += 1
        else:
            self.gone.append(node)

    async def _started(self, node: str) -> bool:
        """Creates the Job unless it is there. Returns False if the node left the cluster."""
        if not await self._is_there(node):
            return False
        seconds = self.run.seconds_left(self.clock())
        if not seconds:
            return True  # too late for a new one
        body = job_manifest(self.run, self.spec, node, seconds)
        await asked(self._create(body), "create jobs", self.spec.namespace)
        return True

    async def _create(self, body: KubeObject) -> None:
        try:
            await self.client.create(_jobs(self.spec), body)
        except ApiRefused as refusal:
            if (refusal.status, refusal.reason) != (409, "AlreadyExists"):  # expected after a restart of the service
                raise

    async def _is_there(self, node: str) -> bool:
        found = await asked(self.client.find(f"{NODES}/{node}"), f"get nodes {node}", self.spec.namespace)
        return found is not None

    async def _look(self, node: str, *, read_pod: bool) -> bool | None:
        """Returns True if the Job succeeded, False if its node left the cluster, None if it is still running."""
        name = job_name(self.run, node)
        job = await asked(self.client.find(f"{_jobs(self.spec)}/{name}"), "get jobs", self.spec.namespace)
        where = f"The Job {self.spec.namespace}/{name} on node {node}"
        if job is None:
            raise JobFailedError(f"{where} does not exist: it was deleted, or was not created in time.")
        if job["metadata"].get("labels", {}).get(GATE_LABEL) != self.run.id:
            raise JobFailedError(f"{where} is not the one of this gate. Delete it.")
        if is_succeeded(job):
            return True
        if why := failure(job):
            if not await self._is_there(node):
                return False
            raise JobFailedError(f"{where} failed: {await self._details(name, why)}")
        if read_pod:
            pod = await self._pod(name)
            reason = (
                waiting_reason(pod)
                if pod
                else f"it has no pod yet; see `kubectl describe job -n {self.spec.namespace} {name}`"
            )
            self.waits[node] = reason
            self._set_progress_text()
            return None if await self._is_there(node) else False
        return None

    def _set_progress_text(self) -> None:
        done = f"The Job has succeeded on {self.succeeded} of {len(self.run.nodes)} nodes."
        waiting = next((f" Node {node}: {why}." for node, why in self.waits.items()), "")
        self.progress.text = f"{done}{waiting}"

    async def _pod(self, job: str) -> KubeObject | None:
        path = f"/api/v1/namespaces/{self.spec.namespace}/pods"
        pods, _ = await asked(
            self.client.list(path, labelSelector=f"job-name={job}"), "list pods", self.spec.namespace
        )
        return pods[0] if pods else None

    async def _details(self, job: str, why: str) -> str:
        """Returns exit code, reason and the end of the log of a failed Job, as far as they can be read."""
        try:
            pod = await self._pod(job)
            container, ended = failed_container(pod or {})
            if not pod or not container:
                return f"{why}. {self.progress.text}".strip()
            path = f"/api/v1/namespaces/{self.spec.namespace}/pods/{pod['metadata']['name']}/log"
            work = self.client.text(path, container=container, tailLines=LOG_LINES, limitBytes=LOG_BYTES)
            end = log_end(await asked(work, "get pods/log", self.spec.namespace))
        except (GateUnavailableError, GateRefusedError) as error:
            return f"{why}. {error}"
        return f"{ended} in container {container}. {f'Its log ends with: {end}' if end else 'Its log is empty.'}"


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
