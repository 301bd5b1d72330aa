"""Follows the remedies of errors of flex node pools, with the lab's Azure and the real az."""

from __future__ import annotations

import itertools
import shlex
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from azure.mgmt.containerservice.models import AgentPool
from azure.mgmt.containerservice.models import AgentPoolManagedClusterAgentPoolProfileProperties as PoolProperties
from msgspec import structs

from aks_flex_node.agent.aks_pool.pool_client import AksPoolClient, open_pool
from aks_flex_node.agent.aks_pool.registration import MachineRegistration
from tests.hosts.recorded import RecordedHost
from tests.remedies.azure_harness import error_of, owners_az, running_azure
from tests.remedies.catalogue import advice, command
from tests.service.agent.aks_pool.test_pool_client import (
    SETTINGS,
    client,
    pool_of,
    signed_in,
)
from tests.service.agent.aks_pool.test_pool_join import complete, selection
from tests.service.lab.kubernetes_harness import running_kubernetes
from tests.service.lab.pool_harness import GROUP, QUICK, register_cluster

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from aks_flex_lab.arm.flex_pools.model import ProvisioningState
    from aks_flex_lab.pki import CertificateAuthority
    from tests.az_extension.warm_az import WarmAz
    from tests.service.lab.cloud_harness import Cloud
    from tests.service.lab.pool_harness import Aks


@pytest.fixture(scope="module")
def azure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Cloud, CertificateAuthority]]:
    with running_azure(tmp_path_factory.mktemp("azure")) as azure:
        yield azure


@pytest.fixture(scope="module")
def az(azure: tuple[Cloud, CertificateAuthority], tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarmAz]:
    with owners_az(azure[0], tmp_path_factory.mktemp("az")) as az:
        yield az


@pytest.fixture(scope="module")
def aks(azure: tuple[Cloud, CertificateAuthority], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Aks]:
    cloud, authority = azure
    with running_kubernetes(authority, tmp_path_factory.mktemp("aks")) as (kubernetes, kubeconfig):
        aks = register_cluster(cloud, kubernetes, kubeconfig, "joined")
        aks.store.set_timings(structs.replace(QUICK, retry_after=1))  # without Retry-After, az waits for 30 seconds
        add_pool(aks, "edge")
        yield aks


def add_pool(aks: Aks, name: str) -> None:
    """Creates a flex node pool. The released az does not know this kind yet, so the SDK does what it would do."""
    settings = PoolProperties(type_properties_type="FlexNodes", mode="User", orchestrator_version="1.35.4")
    aks.owner.agent_pools.begin_create_or_update(GROUP, aks.name, name, AgentPool(properties=settings)).result()


def run_printed(az: WarmAz, hint: str, start: str) -> None:
    """Runs the command that a hint contains."""
    words = shlex.split(hint.partition(f"`{start}")[2].partition("`")[0])
    assert words, hint
    az.run(*start.split()[1:], *words)


@pytest.mark.remedy("aks-pool-role-missing")
def test_printed_role_assignment_is_run_by_an_owner(aks: Aks, az: WarmAz) -> None:
    with open_pool(signed_in(aks, ""), pool_of(aks)) as opened:
        refused = error_of(opened.bootstrap_data)
        assert refused.name == "aks-pool-role-missing"
        start = " ".join(command("aks-pool-role-missing", "az role assignment create"))
        run_printed(az, refused.hint, start)
        assert opened.bootstrap_data().token


def registration(opened: AksPoolClient, host: RecordedHost, name: str) -> MachineRegistration:
    return MachineRegistration(lambda: opened, host, opened.pool, name, SETTINGS, lambda _: None)


@pytest.fixture
def host() -> RecordedHost:
    return RecordedHost({"/etc/machine-id": "0" * 32})


@pytest.mark.remedy("machine-busy")
def test_finished_machine_is_registered(aks: Aks, host: RecordedHost) -> None:
    with client(aks) as opened:
        _, operation = opened.put_machine("busy", replace(SETTINGS, max_pods=50), None, "")
        assert operation
        opened.wait("busy", operation, lambda _: None)
        set_machine_state(aks, "busy", "Updating")
        busy = registration(opened, host, "busy")
        busy.sleep, times = lambda _: None, itertools.count(0, 200)  # the time limit is reached at once
        busy.clock = lambda: float(next(times))
        assert error_of(busy.start).name == "machine-busy"
        advice("machine-busy", "Run the same command again in a few minutes.")
        set_machine_state(aks, "busy", "Succeeded")
        again = registration(opened, host, "busy")
        again.start()
        assert again.finish()


def set_machine_state(aks: Aks, name: str, state: ProvisioningState) -> None:
    with aks.store.changing() as stored:
        (machine,) = [each for each in stored.machines.values() if each.name == name]
        machine.state = state


@pytest.mark.remedy("machine-on-another-host")
@pytest.mark.parametrize("way", ["Set another `node.name`.", "delete the Machine with the command in the message"])
def test_machine_of_another_host_is_left_or_deleted(aks: Aks, az: WarmAz, tmp_path: Path, way: str) -> None:
    with client(aks) as opened:
        if opened.find_machine("m1") is None:
            _, operation = opened.put_machine("m1", SETTINGS, None, "another-host")
            assert operation
            opened.wait("m1", operation, lambda _: None)
    refused = error_of(lambda: complete(selection(aks, tmp_path, node={"name": "m1"})))
    assert refused.name == "machine-on-another-host"
    advice("machine-on-another-host", way)
    if "delete" in way:
        run_printed(az, refused.hint, "az aks nodepool delete-machines")
    name = "m1" if "delete" in way else "m2"
    assert complete(selection(aks, tmp_path, node={"name": name}))[0].config.node.name == name


@pytest.mark.remedy("machine-registration-failed")
def test_failed_machine_is_deleted_and_registered(aks: Aks, az: WarmAz, host: RecordedHost) -> None:
    """AKS cannot reach the API server of its cluster."""
    aks.kubernetes.add_node("m3", "1.35.4")
    works = aks.kubernetes.answer
    aks.kubernetes.answer = lambda *_: (500, {"kind": "Status", "message": "no quota"})  # type: ignore[method-assign]
    try:
        with client(aks) as opened:
            failing = registration(opened, host, "m3")
            failing.start()
            failed = error_of(failing.finish)
    finally:
        aks.kubernetes.answer = works  # type: ignore[method-assign]
    assert failed.name == "machine-registration-failed"
    advice("machine-registration-failed", "Correct the cause. Delete the Machine with the command in the message")
    run_printed(az, failed.hint, "az aks nodepool delete-machines")
    with client(aks) as opened:
        assert opened.find_machine("m3") is None
        again = registration(opened, host, "m3")
        again.start()
        assert again.finish()
