"""Tests of the Job gate with an API server in memory."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import httpx2
import pytest

from aks_flex_node.errors import ClusterError
from aks_flex_rp.rollout_settings import RolloutSettings
from aks_flex_rp.rollouts.gate_run import GateAnswer, GateProgress, GateRefusedError, GateRun
from aks_flex_rp.rollouts.gate_runner import GateRunner
from aks_flex_rp.rollouts.job_gate import GATE_LABEL, GRANT, RBAC, JobGateRunner, job_manifest, job_name
from tests.unit.rp.clusters.fakes import refusal
from tests.unit.rp.rollouts.gate_builders import (
    CLUSTER,
    JOBS,
    NOW,
    PODS,
    RUNNING,
    SUCCEEDED,
    JobCluster,
    condition,
    job_gate,
    run_of,
)

if TYPE_CHECKING:
    from aks_flex_rp.clusters.client import KubeClient
    from aks_flex_rp.rollouts.gate_specs import JobGate

FAILED = condition("Failed", "Job has reached the specified backoff limit")
NODES = tuple(f"edge-{number}" for number in range(45))


def gate(cluster: JobCluster) -> JobGateRunner:
    client = cluster.client()
    return JobGateRunner(lambda _: client, lambda: NOW + 600, pause=0.001)


async def answer(cluster: JobCluster, run: GateRun) -> GateAnswer:
    return await gate(cluster).run(run, spec_of(run), GateProgress())


def spec_of(run: GateRun) -> JobGate:
    assert run.gate.job
    return run.gate.job


def pod(**state: Any) -> dict[str, Any]:
    return {"spec": {}, "status": {"containerStatuses": [{"name": "check", "state": state}]}}


def test_job_is_pinned_to_its_node_and_bounded() -> None:
    run = run_of(job_gate(tolerations=[{"key": "a"}], affinity={"podAffinity": {}}))
    job = job_manifest(run, spec_of(run), "edge-1", 90.5)
    spec = job["spec"]
    assert (spec["backoffLimit"], spec["activeDeadlineSeconds"], spec["ttlSecondsAfterFinished"]) == (0, 90, 690)
    pod_spec = spec["template"]["spec"]
    assert pod_spec["restartPolicy"] == "Never"
    assert pod_spec["automountServiceAccountToken"] is False
    assert pod_spec["tolerations"] == [{"key": "a"}, {"operator": "Exists"}]
    required = pod_spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert required["nodeSelectorTerms"] == [
        {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["edge-1"]}]}
    ]
    assert job["metadata"]["labels"] == {GATE_LABEL: run.id}
    assert "affinity" not in job_gate()["job"]["template"]["spec"]


def test_template_may_mount_the_token_of_its_service_account() -> None:
    run = run_of(job_gate(automountServiceAccountToken=True))
    job = job_manifest(run, spec_of(run), "edge-1", 1)
    assert job["spec"]["template"]["spec"]["automountServiceAccountToken"] is True


async def test_gate_passes_when_jobs_of_all_nodes_succeeded() -> None:
    cluster = JobCluster(*NODES)
    assert await answer(cluster, run_of(job_gate(), *NODES)) == GateAnswer(
        True, "The Job succeeded on 45 of 45 nodes."
    )
    assert sorted(cluster.created) == sorted(NODES)
    assert cluster.most_active <= 20


async def test_failed_job_fails_the_gate_with_exit_code_and_log() -> None:
    cluster = JobCluster(*NODES, outcome=lambda node: FAILED if node == "edge-3" else SUCCEEDED)
    cluster.put(f"{PODS}/smoke-x", pod(terminated={"exitCode": 7, "reason": "Error"}))
    log = "x" * 3000 + "\ndisk is read-only\x1b[0m\n"
    cluster.answers[f"GET {PODS}/smoke-x/log"] = lambda _: httpx2.Response(200, text=log)
    found = await answer(cluster, run_of(job_gate(), *NODES))
    assert not found.passed
    assert "on node edge-3 failed: exit code 7 (Error) in container check. Its log ends with: …xx" in found.message
    assert found.message.endswith("disk is read-only [0m")
    assert len(found.message) < 700


async def test_failed_job_is_reported_without_the_right_to_its_log() -> None:
    cluster = JobCluster(outcome=lambda _: FAILED)
    cluster.put(f"{PODS}/smoke-x", pod(terminated={"exitCode": 1}))
    cluster.answers[f"GET {PODS}/smoke-x/log"] = lambda _: refusal(403, "Forbidden")
    found = await answer(cluster, run_of(job_gate()))
    assert "backoff limit. The service may not get pods/log in the namespace gates. An adm" in found.message


async def test_restarted_gate_creates_no_second_job() -> None:
    cluster = JobCluster("edge-1", "edge-2", outcome=lambda _: RUNNING)
    run = run_of(job_gate(), "edge-1", "edge-2")
    for _ in range(2):
        work = asyncio.create_task(answer(cluster, run))
        await asyncio.sleep(0.05)
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
    cluster.outcome = lambda _: SUCCEEDED
    assert (await answer(cluster, run)).passed
    assert sorted(cluster.created) == ["edge-1", "edge-2"]


async def test_foreign_job_of_the_same_name_does_not_pass_the_gate() -> None:
    cluster, run = JobCluster(), run_of(job_gate())
    cluster.put(f"{JOBS}/{job_name(run, 'edge-1')}", {"metadata": {"annotations": {"flex.aks.azure.com/node": "x"}}})
    assert "is not the one of this gate" in (await answer(cluster, run)).message


async def test_deleted_job_fails_the_gate() -> None:
    cluster, run = JobCluster(outcome=lambda _: RUNNING), run_of(job_gate())
    work = asyncio.create_task(answer(cluster, run))
    await asyncio.sleep(0.05)
    del cluster.objects[f"{JOBS}/{job_name(run, 'edge-1')}"]
    assert "on node edge-1 does not exist: it was deleted" in (await work).message


async def test_node_that_leaves_the_cluster_does_not_block_the_gate() -> None:
    cluster = JobCluster("edge-1", "edge-2", outcome=lambda node: RUNNING if node == "edge-2" else SUCCEEDED)
    work = asyncio.create_task(answer(cluster, run_of(job_gate(), "edge-1", "edge-2", "edge-3")))
    await asyncio.sleep(0.05)
    del cluster.objects["/api/v1/nodes/edge-2"]
    assert (await work).message == "The Job succeeded on 1 of 3 nodes. 2 nodes left the cluster: edge-3, edge-2."


async def test_namespace_without_grant_runs_no_job_even_for_administrators() -> None:
    """A person who may create roll-outs could otherwise run pods in kube-system."""
    cluster = JobCluster()
    del cluster.objects[f"{RBAC}/namespaces/gates/rolebindings/{GRANT}"]
    with pytest.raises(GateRefusedError) as raised:
        await answer(cluster, run_of(job_gate()))
    command = "kubectl apply -n gates -f packaging/kubernetes/22-rbac-rollout-gates.yaml"
    assert f"RoleBinding {GRANT}. An administrator of the cluster allows it with `{command}`." in str(raised.value)
    assert cluster.created == []


async def test_missing_right_is_named_after_three_attempts() -> None:
    cluster = JobCluster()
    cluster.answers[f"POST {JOBS}"] = lambda _: refusal(403, "Forbidden", "jobs.batch is forbidden")
    with pytest.raises(
        GateRefusedError, match=r"may not create jobs in the namespace gates.*jobs.batch is forbidden"
    ):
        await answer(cluster, run_of(job_gate()))
    assert cluster.calls.count(f"POST {JOBS}") == 3


async def test_overloaded_cluster_is_asked_again() -> None:
    cluster = JobCluster()
    refusals = iter([503, 429, 500, 503, 500])

    def busy(_: httpx2.Request) -> httpx2.Response:
        status = next(refusals, 0)
        if not status:
            del cluster.answers["GET /api/v1/nodes/edge-1"]
        return refusal(status or 503, "ServiceUnavailable")

    cluster.answers["GET /api/v1/nodes/edge-1"] = busy
    assert (await answer(cluster, run_of(job_gate()))).passed


async def test_job_that_never_ends_fails_the_gate_at_its_time_limit() -> None:
    cluster = JobCluster(outcome=lambda _: RUNNING)
    client = cluster.client()
    runner = GateRunner(RolloutSettings(), lambda _: client)
    run = run_of(job_gate() | {"timeoutSeconds": 1}, started=time.time())
    found = await runner.run(run)
    assert found == GateAnswer(False, "The gate did not pass within 1 s. The Job has succeeded on 0 of 1 nodes.")
    runner.stop()


async def test_jobs_that_ended_while_the_provider_was_down_count() -> None:
    cluster = JobCluster("edge-1", "edge-2")
    client, now = cluster.client(), [NOW]
    runner = GateRunner(RolloutSettings(), lambda _: client, lambda: now[0])
    run = run_of(job_gate(), "edge-1")
    assert (await runner.run(run)).passed
    now[0] += 86400
    assert (await runner.run(run)).passed
    late = await runner.run(run_of(job_gate(), "edge-2"))
    assert "on node edge-2 does not exist: it was deleted, or was not created in time." in late.message
    assert cluster.created == ["edge-1"]
    runner.stop()


async def test_gate_tells_what_the_pod_waits_for() -> None:
    cluster = JobCluster(outcome=lambda _: RUNNING)
    cluster.put(f"{PODS}/smoke-x", pod(waiting={"reason": "ImagePullBackOff", "message": "not found"}))
    progress, run = GateProgress(), run_of(job_gate())
    work = asyncio.create_task(gate(cluster).run(run, spec_of(run), progress))
    for _ in range(200):
        if "edge-1" in progress.text:
            break
        await asyncio.sleep(0.05)
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)
    assert "Node edge-1: container check: ImagePullBackOff: not found." in progress.text


async def test_unconnected_cluster_is_waited_for() -> None:
    def unconnected(_: str) -> KubeClient:
        raise ClusterError("cluster-not-connected", "The service is not connected yet.", "Try again.")

    runner = GateRunner(RolloutSettings(), unconnected)
    run = run_of(job_gate() | {"timeoutSeconds": 1}, started=time.time())
    assert "not connected yet" in (await runner.run(run)).message
    await runner.clean_up(run)
    assert await runner.check(CLUSTER, [run.gate]) == []
    runner.stop()


async def test_clean_up_deletes_jobs_of_the_run_with_their_pods() -> None:
    cluster, run, asked = JobCluster(), run_of(job_gate()), list[httpx2.Request]()

    def delete(request: httpx2.Request) -> httpx2.Response:
        asked.append(request)
        return httpx2.Response(200, json={})

    cluster.answers[f"DELETE {JOBS}"] = delete
    await gate(cluster).clean_up(run, spec_of(run))
    [request] = asked
    assert request.url.params["labelSelector"] == f"{GATE_LABEL}={run.id}"
    assert b'"propagationPolicy": "Background"' in request.content


async def test_refused_template_is_found_when_the_roll_out_is_created() -> None:
    cluster = JobCluster()
    cluster.answers[f"POST {JOBS}"] = lambda _: refusal(422, "Invalid", "spec.template.image: Required value")
    client = cluster.client()
    runner = GateRunner(RolloutSettings(), lambda _: client)
    [found] = await runner.check(CLUSTER, [run_of(job_gate()).gate])
    assert found.target == "properties.gates[0].job"
    assert found.message == "The cluster refused to create jobs: spec.template.image: Required value."
    runner.stop()
