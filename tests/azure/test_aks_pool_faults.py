"""Faults of Azure, crashes and power cuts, with a machine that joins a flex node pool and lives in it.

The machine stays what it is, `status` describes the cause, and the agent continues by itself afterwards.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from aks_flex_lab import network
from aks_flex_lab.arm.eventual_consistency import EventualConsistency
from aks_flex_lab.pools import LabPools
from tests.agents import flex
from tests.chaos import pool_cuts
from tests.chaos.pool_cuts import OLDER, POLL_SECONDS
from tests.chaos.seeds import seeded
from tests.lab_machines import temporary_machine
from tests.pool_node import HOME, PoolNode
from tests.releases import broken_kubelet
from tests.wait import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from aks_flex_lab.lab import Lab
    from aks_flex_lab.snapshots import Snapshot

POOL, NAME = "faults", "pool-faults"
MANY = 1_000_000  # requests


@dataclass(frozen=True)
class Subject:
    """The node of all tests of this file, which run in this order, and its machine before it joined."""

    node: PoolNode
    before: Snapshot


@pytest.fixture(scope="module")
def subject(lab: Lab) -> Iterator[Subject]:
    pools = LabPools(lab)
    pools.put(POOL, {"orchestratorVersion": OLDER})
    with temporary_machine(lab, NAME) as machine:
        node = PoolNode.make(lab, machine, POOL)
        node.poll_every(POLL_SECONDS)
        yield Subject(node, machine.snapshot())
        for each in pools.machines(POOL):
            pools.delete_machines(POOL, [each["name"]])
    pools.delete(POOL)


@pytest.fixture
def node(subject: Subject) -> PoolNode:
    """Returns the node: an earlier test has joined it, unless a test runs alone."""
    if not subject.node.has(HOME):
        subject.node.join()
    return subject.node


@contextmanager
def arm_answers(node: PoolNode, kind: str) -> Iterator[None]:
    """Lets Azure Resource Manager answer all requests with an error."""
    azure = EventualConsistency(node.lab.azure.state)
    azure.change(**{kind: MANY, "retry_after": 1})
    try:
        yield
    finally:
        azure.change(**{kind: 0})


@contextmanager
def refused(node: PoolNode) -> Iterator[None]:
    """Refuses all connections to Azure, also those to sign in."""
    proxy = node.lab.fault_proxy
    proxy.set_enabled("azure", on=False)
    try:
        yield
    finally:
        proxy.clear("azure")


@contextmanager
def without_dns(node: PoolNode) -> Iterator[None]:
    """Lets the machine ask a DNS server that does not exist, and closes its connections to Azure, which need none."""
    config, kept = "/etc/resolv.conf", "/run/resolv.conf.kept"
    node.machine.run("sh", "-c", f"cp {config} {kept} && echo nameserver 127.0.0.9 >{config}")
    connections = ("ss", "-Htn", "state", "established", "dst", network.AZURE)
    try:
        with refused(node):
            until(lambda: node.machine.run(*connections).out.strip() == "", "no connection to Azure is open")
        yield
    finally:
        node.machine.run("sh", "-c", f"cat {kept} >{config} && rm {kept}")


@dataclass(frozen=True)
class AzureFault:
    inject: Callable[[PoolNode], AbstractContextManager[None]]
    state: str  # of the daemon
    message: str  # pattern of what `status` shows
    error: str  # name of the error of a join
    hint: str  # pattern of its remedy


FAULTS = {
    "throttled": AzureFault(
        lambda node: arm_answers(node, "throttled"),
        "Throttled",
        "TooManyRequests: .* The agent tries again by itself",
        "arm-request-rejected",
        "Run the same command again",
    ),
    "refused": AzureFault(
        refused,
        "ProviderUnreachable",
        "refused the connection. Check the network, the DNS and the proxy",
        "arm-unreachable",
        "Check the network",
    ),
    "without-dns": AzureFault(
        without_dns,
        "ProviderUnreachable",
        "resolve.* Check the network, the DNS and the proxy",
        "arm-unreachable",
        "Check the network",
    ),
    "captive-portal": AzureFault(
        lambda node: arm_answers(node, "html"),
        "UnexpectedResponse",
        "A proxy or a sign-in page may have answered instead. Check `azure.resourceManager` and the proxy",
        "aks-pool-data-invalid",
        "the proxy",
    ),
    "other-tenant": AzureFault(
        lambda node: arm_answers(node, "tenant"),
        "Forbidden",
        "set `azure.tenantId`",
        "aks-pool-wrong-tenant",
        "Set `azure.tenantId`",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_join_fails_without_changes_while_azure_fails(subject: Subject, name: str) -> None:
    fault, node = FAULTS[name], subject.node
    with fault.inject(node):
        done = node.join(check=False)
    print(done.err)
    assert (done.code, fault.error in done.err) == (1, True), done.err
    assert re.search(fault.hint, done.err), done.err
    assert node.left_over(subject.before) == []
    assert not [each for each in node.pools.machines(POOL) if each["name"] == NAME]


def test_interrupted_pool_join_is_completed_by_the_same_command(subject: Subject) -> None:
    pool_cuts.interrupted_join(subject.node, seeded(1))


@pytest.mark.parametrize("name", FAULTS)
def test_node_outlives_a_fault_of_azure_and_then_continues(node: PoolNode, name: str) -> None:
    fault = FAULTS[name]
    until(lambda: node.daemon.get("providerState") == "Connected", "the daemon reads its Machine")
    uid, started = node.uid, kubelet_start(node)
    with fault.inject(node):
        # The first poll may also notice that an open connection was interrupted.
        until(lambda: is_described(node, fault), f"`status` shows {fault.state}: {fault.message}")
        assert (node.uid, node.is_ready) == (uid, True)

    etag = node.change(nodeLabels={"after": name})
    until(lambda: node.stored_version == etag, "the daemon reads and applies a change of the Machine")
    until(lambda: node.daemon.get("providerState") == "Connected", "the daemon is connected")
    assert (node.uid, kubelet_start(node), node.is_ready) == (uid, started, True)
    assert node.get()["metadata"]["labels"]["after"] == name
    assert node.is_clean


def is_described(node: PoolNode, fault: AzureFault) -> bool:
    shown = flex(node.machine, "status").out
    print(line := next(each for each in shown.splitlines() if each.startswith("pool ")))
    return re.search(f"{fault.state}, .*{fault.message}", line) is not None


def kubelet_start(node: PoolNode) -> str:
    return node.machine.run("systemctl", "show", "-P", "ActiveEnterTimestampMonotonic", "kubelet").out


def test_missing_page_of_a_portal_never_removes_the_node(node: PoolNode) -> None:
    azure, uid = EventualConsistency(node.lab.azure.state), node.uid
    with arm_answers(node, "html"):
        # A deleted Machine is confirmed by the second response.
        until(lambda: azure.delays().html <= MANY - 3, "the daemon has got three such responses")
        until(lambda: node.daemon.get("providerState") == "UnexpectedResponse", "the daemon does not trust them")
        assert (node.uid, node.is_ready, node.is_clean) == (uid, True, True)
    until(lambda: node.daemon.get("providerState") == "Connected", "the daemon is connected")


def test_interrupted_rollback_ends_with_the_earlier_version(node: PoolNode) -> None:
    with broken_kubelet(node.lab, pool_cuts.BROKEN):
        pool_cuts.interrupted_rollback(node, seeded(13))


def test_interrupted_upgrade_ends_with_the_new_version(node: PoolNode) -> None:
    pool_cuts.interrupted_upgrade(node, seeded(9))


def test_interrupted_removal_of_a_pool_node_leaves_nothing(subject: Subject, node: PoolNode) -> None:
    pool_cuts.interrupted_removal(node, seeded(4), subject.before)
