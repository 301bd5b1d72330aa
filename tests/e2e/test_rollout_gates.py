"""The Job gate of roll-outs on a real node, with the narrow account of the provider."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from aks_flex_lab import node_agent
from aks_flex_rp.clusters.client import FixedConnection, KubeClient
from aks_flex_rp.clusters.connections import load_kubeconfig
from aks_flex_rp.rollout_settings import RolloutSettings
from aks_flex_rp.rollouts.gate_runner import GateRunner
from aks_flex_rp.rollouts.job_gate import GATE_LABEL, GRANT, MANIFEST
from tests.agents import flex
from tests.unit.rp.rollouts.gate_builders import CLUSTER, run_of
from tests.wait import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aks_flex_lab.lab import Lab
    from aks_flex_lab.machines.machine import EdgeMachine
    from aks_flex_rp.clusters.connections import DirectConnection
    from aks_flex_rp.rollouts.gate_run import GateRun

ROOT = Path(__file__).parents[2]
RBAC = {"apiVersion": "rbac.authorization.k8s.io/v1"}
ACCOUNT = {"kind": "ServiceAccount", "name": "aks-flex-rp", "namespace": "aks-flex"}
READS_NODES = (
    {**RBAC, "kind": "ClusterRole", "metadata": {"name": "gate-test"}},
    {**RBAC, "kind": "ClusterRoleBinding", "metadata": {"name": "gate-test"}},
)


@pytest.fixture(scope="module")
def node(lab: Lab, shared: EdgeMachine) -> Iterator[str]:
    node_agent.write_configuration(shared, node_agent.configuration(lab))
    flex(shared, "bootstrap")
    yield shared.name
    flex(shared, "unbootstrap", "--yes", "--drain-timeout", "5")


@pytest.fixture(scope="module")
def account(lab: Lab) -> Iterator[DirectConnection]:
    """Yields a connection with an account that reads Nodes, as the provider's does, and has no other rights."""
    role, binding = READS_NODES
    rule = {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]}
    of_role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "gate-test"}
    for name in ("aks-flex", "gates"):
        lab.cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    metadata = {"name": "aks-flex-rp", "namespace": "aks-flex"}
    lab.cluster.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata})
    lab.cluster.apply({**role, "rules": [rule]})
    lab.cluster.apply({**binding, "roleRef": of_role, "subjects": [ACCOUNT]})
    token = lab.cluster.run("create", "token", "aks-flex-rp", "-n", "aks-flex").out.strip()
    yield replace(load_kubeconfig(lab.admin_kubeconfig), certificate="", key="", token=token)
    lab.cluster.run("delete", "namespace", "aks-flex", "gates", "--wait=false")
    lab.cluster.run("delete", "clusterrole,clusterrolebinding", "gate-test")


@pytest.fixture(scope="module")
def granted(lab: Lab, account: DirectConnection) -> DirectConnection:
    lab.cluster.run("apply", "-n", "gates", "-f", str(ROOT / MANIFEST))
    return account


def run_on(node: str, script: str, seconds: int = 120) -> GateRun:
    container = {"name": "check", "image": "mcr.microsoft.com/flex/test:1", "command": ["sh", "-c", script]}
    template = {"spec": {"containers": [container], "terminationGracePeriodSeconds": 1}}
    gate: dict[str, Any] = {"name": "smoke", "timeoutSeconds": seconds}
    return run_of({**gate, "job": {"namespace": "gates", "template": template}}, node, started=time.time())


class Gates:
    """A runner and its client."""

    def __init__(self, direct: DirectConnection) -> None:
        self._client = KubeClient(FixedConnection(direct))
        self.runner = GateRunner(RolloutSettings(), lambda _: self._client)

    async def __aenter__(self) -> GateRunner:
        return self.runner

    async def __aexit__(self, *_: object) -> None:
        self.runner.stop()
        await self._client.close()


def jobs(lab: Lab, run: GateRun, kind: str = "jobs") -> list[str]:
    words = ("get", kind, "-n", "gates", "-l", f"{GATE_LABEL}={run.id}", "-o", "name")
    return lab.cluster.run(*words).out.split()


async def test_namespace_without_grant_is_opened_by_the_named_command(
    lab: Lab, account: DirectConnection, node: str
) -> None:
    async with Gates(account) as runner:
        run = run_on(node, "true")
        [problem] = await runner.check(CLUSTER, [run.gate])
        answer = await runner.run(run)
        assert not answer.passed
        for message in (problem.message, answer.message):
            assert f"may not get rolebindings {GRANT} in the namespace gates." in message
            command = message.partition("`")[2].partition("`")[0]
            assert command == f"kubectl apply -n gates -f {MANIFEST}"
        *words, file = command.split()[1:]
        lab.cluster.run(*words, str(ROOT / file))
        assert await runner.check(CLUSTER, [run.gate]) == []


async def test_gate_passes_on_cordoned_and_tainted_node(lab: Lab, granted: DirectConnection, node: str) -> None:
    lab.cluster.run("cordon", node)
    lab.cluster.run("taint", "node", node, "gate-test=1:NoSchedule")
    try:
        async with Gates(granted) as runner:
            run = run_on(node, "true")
            answer = await runner.run(run)
            assert answer.message == "The Job succeeded on 1 of 1 nodes."
            await runner.clean_up(run)
        until(lambda: not jobs(lab, run) and not jobs(lab, run, "pods"), "Job and pod are deleted")
    finally:
        lab.cluster.run("taint", "node", node, "gate-test-")
        lab.cluster.run("uncordon", node)


async def test_failed_job_tells_exit_code_and_log(granted: DirectConnection, node: str) -> None:
    async with Gates(granted) as runner:
        run = run_on(node, "echo the disk is read-only; exit 3")
        answer = await runner.run(run)
        await runner.clean_up(run)
    assert not answer.passed
    expected = (
        f"on node {node} failed: exit code 3 (Error) in container check. Its log ends with: the disk is read-only"
    )
    assert answer.message.endswith(expected)


async def test_job_that_never_ends_is_ended_at_the_time_limit(lab: Lab, granted: DirectConnection, node: str) -> None:
    async with Gates(granted) as runner:
        run, began = run_on(node, "sleep 3600", seconds=15), time.monotonic()
        answer = await runner.run(run)
        assert time.monotonic() - began < 18
        assert not answer.passed
        assert "DeadlineExceeded" in answer.message or "did not pass within 15 s" in answer.message
        until(lambda: not jobs(lab, run, "pods"), "the cluster ends the pod without the provider")
        await runner.clean_up(run)


async def test_gate_of_restarted_provider_continues_with_the_same_job(
    lab: Lab, granted: DirectConnection, node: str
) -> None:
    run = run_on(node, "sleep 8")
    async with Gates(granted) as killed:
        work = asyncio.create_task(killed.run(run))
        await asyncio.sleep(3)
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
    before = jobs(lab, run)
    async with Gates(granted) as runner:
        assert (await runner.run(run)).passed
        assert len(before) == 1
        assert jobs(lab, run) == before
        await runner.clean_up(run)
