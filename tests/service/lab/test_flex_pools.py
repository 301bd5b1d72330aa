"""Tests of the lab's flex node pools with the Azure SDK as client. All answers are compared with its models."""

from __future__ import annotations

import base64
import datetime
import itertools
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
import urllib3
from azure.core.exceptions import (
    HttpResponseError,
    ResourceNotFoundError,
)
from azure.mgmt.containerservice.models import (
    AgentPool,
    AgentPoolDeleteMachinesParameter,
    Machine,
    MachineKubernetesProfile,
    MachineProperties,
)
from azure.mgmt.containerservice.models import AgentPoolManagedClusterAgentPoolProfileProperties as PoolProperties
from azure.mgmt.containerservice.models import AgentPoolUpgradeSettings as UpgradeSettings

from aks_flex_lab.arm.eventual_consistency import EventualConsistency
from aks_flex_lab.arm.flex_pools.nodes import DELETING_TAINT
from aks_flex_lab.cluster import BOOTSTRAP_GROUP
from aks_flex_node.timestamps import parse_utc
from tests.service.lab.cloud_harness import READER
from tests.service.lab.kubernetes_harness import running_kubernetes
from tests.service.lab.pool_harness import CONTROL_PLANE, GROUP, register_cluster
from tests.wait import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from aks_flex_lab.pki import CertificateAuthority
    from tests.service.lab.cloud_harness import Cloud
    from tests.service.lab.kubernetes_harness import FakeKubernetes
    from tests.service.lab.pool_harness import Aks

AGENT_ROLE = "8f139b0f-7eaf-460b-a9da-5b1246d9ed0d"
AKS_CONTRIBUTOR = "ed7f3fbd-7b88-4dd4-9017-9adb7ce333f8"
OLD = "1.35.4"
NAMES = itertools.count(1)


@pytest.fixture
def aks(cloud: Cloud, authority: CertificateAuthority, tmp_path: Path) -> Iterator[Aks]:
    """Yields an own cluster for each test, and checks at the end that all answers fit the SDK's models."""
    with running_kubernetes(authority, tmp_path) as (kubernetes, kubeconfig):
        aks = register_cluster(cloud, kubernetes, kubeconfig, f"pools{next(NAMES)}")
        yield aks
    assert aks.findings == []
    assert aks.checked


def begin_pool(aks: Aks, *, polling: bool = True, **properties: Any) -> Any:
    """Starts to create or change the pool "edge"."""
    body = AgentPool(properties=PoolProperties(**{"type_properties_type": "FlexNodes", "mode": "User", **properties}))
    return aks.owner.agent_pools.begin_create_or_update(GROUP, aks.name, "edge", body, polling=polling)


def put_pool(aks: Aks, **properties: Any) -> Any:
    return begin_pool(aks, **properties).result()


def get_pool(aks: Aks) -> Any:
    return aks.owner.agent_pools.get(GROUP, aks.name, "edge").properties


def put_machine(aks: Aks, name: str, **kubernetes: Any) -> Any:
    body = Machine(properties=MachineProperties(kubernetes=MachineKubernetesProfile(**kubernetes)))
    return aks.owner.machines.begin_create_or_update(GROUP, aks.name, "edge", name, body).result()


def get_machine(aks: Aks, name: str) -> Any:
    return aks.owner.machines.get(GROUP, aks.name, "edge", name)


def delete_machines(aks: Aks, *names: str) -> None:
    body = AgentPoolDeleteMachinesParameter(machine_names=list(names))
    aks.owner.agent_pools.begin_delete_machines(GROUP, aks.name, "edge", body).result()


@contextmanager
def refused(status: int, code: str) -> Iterator[pytest.ExceptionInfo[HttpResponseError]]:
    with pytest.raises(HttpResponseError) as caught:
        yield caught
    assert (caught.value.status_code, caught.value.error and caught.value.error.code) == (status, code)


def joined(aks: Aks, *names: str, version: str = OLD) -> None:
    """Registers Machines whose Nodes are Ready."""
    for name in names:
        put_machine(aks, name, orchestrator_version=version)
        aks.kubernetes.add_node(name, version)


def agents(kubernetes: FakeKubernetes, version: str) -> Callable[[str], None]:
    """Returns what an agent does when its Node is deleted: it registers again, on this version."""

    def register(name: str) -> None:
        time.sleep(0.2)
        kubernetes.add_node(name, version)

    return register


def test_pool_is_created_listed_and_deleted(aks: Aks) -> None:
    made = put_pool(aks, node_labels={"site": "north"}, node_taints=["edge=true:NoSchedule"], max_pods=50)
    pools = aks.owner.agent_pools
    shown = get_pool(aks)
    assert made.id == f"{aks.id}/agentPools/edge"
    assert (shown.type_properties_type, shown.mode, shown.provisioning_state) == ("FlexNodes", "User", "Succeeded")
    assert (shown.node_labels, shown.max_pods, shown.orchestrator_version) == ({"site": "north"}, 50, CONTROL_PLANE)
    assert {each.name for each in pools.list(GROUP, aks.name)} == {"system", "edge"}
    profiles = aks.owner.managed_clusters.get(GROUP, aks.name).properties.agent_pool_profiles
    assert "FlexNodes" in {each.type for each in profiles}
    pools.begin_delete(GROUP, aks.name, "edge").result()
    with pytest.raises(ResourceNotFoundError):
        get_pool(aks)


@pytest.mark.parametrize(
    ("properties", "code", "word"),
    [
        ({"type_properties_type": "VirtualMachineScaleSets"}, "InvalidParameter", "FlexNodes"),
        ({"vm_size": "Standard_D2s_v5", "count": 3}, "InvalidParameter", "count, vmSize"),
        ({"orchestrator_version": "1.37.0"}, "NodePoolMcVersionIncompatible", "1.37.0"),
        ({"node_taints": ["edge"]}, "InvalidParameter", "nodeTaints"),
        ({"mode": "System"}, "InvalidParameter", "mode"),
        ({"upgrade_settings": UpgradeSettings(max_surge="1")}, "InvalidParameter", "maxSurge"),
    ],
)
def test_pool_that_the_lab_cannot_serve_is_refused(aks: Aks, properties: Any, code: str, word: str) -> None:
    with refused(400, code) as error:
        begin_pool(aks, **properties)
    assert word in error.value.message


def test_bootstrap_data_has_a_token_of_the_cluster_for_one_hour(aks: Aks) -> None:
    put_pool(aks, orchestrator_version=OLD, node_labels={"site": "north"}, node_taints=["edge=true:NoSchedule"])
    data = aks.client(AGENT_ROLE, f"{aks.id}/agentPools/edge").agent_pools.list_bootstrap_data(
        GROUP, aks.name, "edge", {}
    )
    [secret] = aks.kubernetes.secrets
    stored = secret["stringData"]
    assert data.azure.bootstrap_token.token == f"{stored['token-id']}.{stored['token-secret']}"
    assert secret["type"] == "bootstrap.kubernetes.io/token"
    left = parse_utc(stored["expiration"]) - datetime.datetime.now(datetime.timezone.utc)
    assert datetime.timedelta(minutes=59) < left <= datetime.timedelta(hours=1)
    roles = {each["roleRef"]["name"]: each["subjects"][0]["name"] for each in aks.kubernetes.bindings.values()}
    assert roles["system:node-bootstrapper"] == stored["auth-extra-groups"] == BOOTSTRAP_GROUP
    assert len(roles) == 3
    assert (data.azure.target_cluster.resource_id, data.azure.target_agent_pool_name) == (aks.id, "edge")
    assert (data.components.kubernetes, data.node.labels) == (OLD, {"site": "north"})
    assert data.node.taints == ["edge=true:NoSchedule"]
    assert b"BEGIN CERTIFICATE" in base64.b64decode(data.node.kubelet.ca_cert_data)
    assert data.azure.bootstrap_token.token not in aks.cloud.log.read_text()


def test_machine_takes_omitted_settings_from_its_pool(aks: Aks) -> None:
    put_pool(aks, orchestrator_version=OLD, node_labels={"site": "north"}, max_pods=50)
    made = put_machine(aks, "Edge-1", max_pods=60).properties
    assert made.provisioning_state == "Succeeded"
    assert (made.kubernetes.orchestrator_version, made.kubernetes.max_pods) == (OLD, 60)
    assert made.kubernetes.node_labels == {"site": "north", "kubernetes.azure.com/managed": "false"}
    assert (made.kubernetes.node_name, made.kubernetes.current_orchestrator_version) == ("edge-1", OLD)
    assert [each.name for each in aks.owner.machines.list(GROUP, aks.name, "edge")] == ["Edge-1"]


def test_pool_update_changes_later_machines_only(aks: Aks) -> None:
    put_pool(aks, node_labels={"site": "north"})
    before = put_machine(aks, "edge-1")
    put_pool(aks, node_labels={"site": "south"})
    assert get_machine(aks, "edge-1").properties.e_tag == before.properties.e_tag
    assert put_machine(aks, "edge-2").properties.kubernetes.node_labels["site"] == "south"


def test_etag_changes_with_settings_and_not_with_status(aks: Aks) -> None:
    put_pool(aks)
    first = put_machine(aks, "edge-1", orchestrator_version=OLD, node_labels={"a": "1"}).properties.e_tag
    again = put_machine(aks, "edge-1", orchestrator_version=OLD, node_labels={"a": "1"}).properties.e_tag
    aks.kubernetes.add_node("edge-1", CONTROL_PLANE)
    seen = get_machine(aks, "edge-1").properties
    assert first == again == seen.e_tag
    assert seen.kubernetes.current_orchestrator_version == CONTROL_PLANE
    assert (seen.status.vm_state, seen.status.drift_action) == ("Running", "Recreate")
    assert put_machine(aks, "edge-1", node_labels={"a": "2"}).properties.e_tag != first


def test_labels_and_taints_of_a_machine_are_written_to_its_node(aks: Aks) -> None:
    put_pool(aks)
    node = aks.kubernetes.add_node("edge-1", OLD)
    node["spec"]["taints"] = [{"key": "own", "effect": "NoExecute"}]
    put_machine(aks, "edge-1", node_labels={"a": "1", "b": "1"}, node_taints=["x=1:NoSchedule"])
    put_machine(aks, "edge-1", node_labels={"a": "2"}, node_taints=["y:NoExecute"])
    assert node["metadata"]["labels"] == {"a": "2"}
    assert node["spec"]["taints"] == [{"key": "own", "effect": "NoExecute"}, {"key": "y", "effect": "NoExecute"}]
    assert ("deleted", "edge-1") not in aks.kubernetes.events


@pytest.mark.parametrize(("unavailable", "largest"), [(None, 1), ("67%", 3)])
def test_upgrade_replaces_nodes_within_max_unavailable(aks: Aks, unavailable: str | None, largest: int) -> None:
    settings = UpgradeSettings(max_unavailable=unavailable)
    put_pool(aks, orchestrator_version=OLD, upgrade_settings=settings)
    joined(aks, "edge-1", "edge-2", "edge-3")
    aks.kubernetes.add_pod("web", "edge-2")
    aks.kubernetes.add_pod("log", "edge-2", "DaemonSet")
    aks.kubernetes.on_deleted = agents(aks.kubernetes, CONTROL_PLANE)
    aks.kubernetes.events.clear()
    done = put_pool(aks, orchestrator_version=CONTROL_PLANE).properties
    assert (done.provisioning_state, done.current_orchestrator_version) == ("Succeeded", CONTROL_PLANE)
    away, most = set[str](), 0
    for what, name in aks.kubernetes.events:
        away = away | {name} if what == "cordoned" else away - {name} if what == "registered" else away
        most = max(most, len(away))
    assert most == largest
    assert ("evicted", "web") in aks.kubernetes.events
    assert "default/log" in aks.kubernetes.pods
    for name in ("edge-1", "edge-2", "edge-3"):
        machine = get_machine(aks, name).properties
        assert (machine.kubernetes.orchestrator_version, machine.provisioning_state) == (CONTROL_PLANE, "Succeeded")


def test_upgrade_fails_when_a_disruption_budget_blocks_the_drain(aks: Aks) -> None:
    put_pool(aks, orchestrator_version=OLD)
    joined(aks, "edge-1", "edge-2")
    aks.kubernetes.add_pod("db", "edge-1")
    aks.kubernetes.protected.add("default/db")
    with pytest.raises(HttpResponseError, match="default/db"):
        put_pool(aks, orchestrator_version=CONTROL_PLANE)
    pool = get_pool(aks)
    assert pool.provisioning_state == "Failed"
    assert pool.status.provisioning_error.code == "PodDrainFailure"
    assert aks.kubernetes.events[-2:] == [("cordoned", "edge-1"), ("uncordoned", "edge-1")]
    failed = get_machine(aks, "edge-1").properties.e_tag
    aks.kubernetes.protected.clear()
    aks.kubernetes.on_deleted = agents(aks.kubernetes, CONTROL_PLANE)
    assert put_pool(aks, orchestrator_version=CONTROL_PLANE).properties.provisioning_state == "Succeeded"
    assert get_machine(aks, "edge-1").properties.e_tag != failed


def test_upgrade_stops_when_a_node_returns_on_its_old_version(aks: Aks) -> None:
    put_pool(aks, orchestrator_version=OLD)
    joined(aks, "edge-1", "edge-2")
    aks.kubernetes.on_deleted = agents(aks.kubernetes, OLD)
    with pytest.raises(HttpResponseError, match=r"it runs Kubernetes 1\.35\.4 and is Ready"):
        put_pool(aks, orchestrator_version=CONTROL_PLANE)
    assert ("deleted", "edge-2") not in aks.kubernetes.events
    states = {each.name: each.properties for each in aks.owner.machines.list(GROUP, aks.name, "edge")}
    assert (states["edge-1"].provisioning_state, states["edge-2"].provisioning_state) == ("Failed", "Succeeded")
    assert states["edge-1"].status.provisioning_error.code == "NodesNotReady"


def test_second_change_of_a_pool_is_refused_during_an_upgrade(aks: Aks) -> None:
    put_pool(aks, orchestrator_version=OLD)
    joined(aks, "edge-1")
    upgrade = begin_pool(aks, orchestrator_version=CONTROL_PLANE)
    changes: list[Callable[[], object]] = [
        lambda: put_pool(aks, max_pods=20),
        lambda: put_machine(aks, "edge-1", max_pods=20),
    ]
    for change in changes:
        with refused(409, "OperationNotAllowed"):
            change()
    aks.kubernetes.add_node("edge-1", CONTROL_PLANE)
    upgrade.result()


def test_deleted_machine_is_gone_and_its_node_is_tainted(aks: Aks) -> None:
    put_pool(aks)
    joined(aks, "edge-1", "edge-2")
    aks.kubernetes.add_pod("web", "edge-1")
    delete_machines(aks, "edge-1")
    with refused(404, "NotFound"):
        get_machine(aks, "edge-1")
    node = aks.kubernetes.nodes["edge-1"]
    assert (node["spec"]["taints"], node["spec"]["unschedulable"]) == ([DELETING_TAINT], True)
    assert ("evicted", "web") in aks.kubernetes.events
    assert get_machine(aks, "edge-2").properties.provisioning_state == "Succeeded"
    node["status"]["conditions"][0]["status"] = "Unknown"
    until(lambda: "edge-1" not in aks.kubernetes.nodes, "the stale Node is deleted", 30)


def test_unknown_machine_cannot_be_deleted(aks: Aks) -> None:
    put_pool(aks)
    put_machine(aks, "edge-1")
    with pytest.raises(ResourceNotFoundError, match="edge-9"):
        delete_machines(aks, "edge-1", "edge-9")
    assert get_machine(aks, "edge-1").properties.provisioning_state == "Succeeded"


def test_pool_with_machines_cannot_be_deleted(aks: Aks) -> None:
    put_pool(aks)
    put_machine(aks, "edge-1")
    with pytest.raises(HttpResponseError, match="edge-1"):
        aks.owner.agent_pools.begin_delete(GROUP, aks.name, "edge")


@pytest.mark.parametrize(
    ("fault", "status", "content"),
    [
        ("throttled", 429, "application/json"),
        ("unavailable", 503, "application/json"),
        ("html", 404, "text/html"),
        ("tenant", 401, "application/json"),
    ],
)
def test_injected_fault_answers_the_next_request_only(aks: Aks, fault: str, status: int, content: str) -> None:
    put_pool(aks)
    EventualConsistency(aks.cloud.state).change(**{fault: 1, "retry_after": 7})
    url = f"{aks.cloud.url}{aks.id}/agentPools/edge?api-version=2026-08-02-preview"
    with urllib3.PoolManager(ca_certs=aks.cloud.ca, retries=False) as pool:
        answers = [pool.request("GET", url) for _ in range(2)]
    assert [each.status for each in answers] == [status, 401]
    assert answers[0].headers["Content-Type"].startswith(content)
    assert answers[0].headers.get("Retry-After") == (None if fault in {"html", "tenant"} else "7")


@pytest.mark.parametrize(
    ("role", "allowed"),
    [
        ("", set()),
        (READER, {"get pool", "get machine"}),
        (AGENT_ROLE, {"bootstrap data", "get machine", "put machine"}),
        (
            AKS_CONTRIBUTOR,
            {"get pool", "put pool", "bootstrap data", "get machine", "put machine", "delete machines"},
        ),
    ],
)
def test_each_request_needs_its_role(aks: Aks, role: str, allowed: set[str]) -> None:
    put_pool(aks)
    put_machine(aks, "edge-1")
    client = aks.client(role)
    pools, machines, pool = client.agent_pools, client.machines, (GROUP, aks.name, "edge")
    body = AgentPool(properties=PoolProperties(type_properties_type="FlexNodes"))
    requests: dict[str, Callable[[], object]] = {
        "get pool": lambda: pools.get(*pool),
        "put pool": lambda: pools.begin_create_or_update(*pool, body).result(),
        "bootstrap data": lambda: pools.list_bootstrap_data(*pool, {}),
        "get machine": lambda: machines.get(*pool, "edge-1"),
        "put machine": lambda: machines.begin_create_or_update(*pool, "edge-1", Machine()).result(),
        "delete machines": lambda: pools.begin_delete_machines(*pool, {"machineNames": ["edge-1"]}).result(),
    }
    for what, request in requests.items():
        if what in allowed:
            request()
            continue
        with refused(403, "AuthorizationFailed"):
            request()
