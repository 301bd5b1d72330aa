"""Tests of the lab's Azure with the real az."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING

import pytest
import yaml
from msgspec.structs import replace

from aks_flex_lab.arm.hybrid_compute import ArcMachines
from aks_flex_lab.arm.managed_clusters import ManagedClusters
from aks_flex_node.azure.roles import CLUSTER_ROLES
from tests.az_extension.warm_az import warmed
from tests.azure_cli import Az
from tests.service.lab.cloud_harness import CLUSTER, OWNER
from tests.service.lab.kubernetes_harness import running_kubernetes
from tests.service.lab.pool_harness import QUICK, register_cluster
from tests.wait import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from aks_flex_lab.pki import CertificateAuthority
    from tests.service.lab.cloud_harness import Cloud

GROUP = CLUSTER.partition("/providers/")[0]
MACHINE = f"{GROUP}/providers/Microsoft.HybridCompute/machines/by-az"
IN_GROUP = ("--resource-group", "edge")
KUBECONFIG = {
    "apiVersion": "v1",
    "kind": "Config",
    "clusters": [{"name": "plant", "cluster": {"server": "https://api.flex.internal:443"}}],
    "contexts": [{"name": "plant", "context": {"cluster": "plant", "user": "clusterAdmin_edge_plant"}}],
    "users": [{"name": "clusterAdmin_edge_plant", "user": {"token": "x"}}],
    "current-context": "plant",
}


@pytest.fixture(scope="module")
def az(cloud: Cloud, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Az]:
    """Returns an owner's az."""
    with warmed(Az.signed_in(cloud, tmp_path_factory.mktemp("azure"), OWNER, GROUP)) as warm:
        yield warm


def test_az_creates_shows_and_deletes_arc_machines(cloud: Cloud, az: Az) -> None:
    body = {"location": "westeurope", "properties": {"vmId": "vm-by-az", "clientPublicKey": "x"}}
    address = f"{cloud.url}{MACHINE}?api-version=2024-07-10"
    made = az("rest", "--method", "put", "--url", address, "--body", json.dumps(body), "--resource", cloud.url)
    shown = az("resource", "show", "--ids", MACHINE)
    assert shown["identity"]["principalId"] == made["identity"]["principalId"]
    az("resource", "delete", "--ids", MACHINE)
    assert not ArcMachines(cloud.state).find(MACHINE)


def test_az_creates_lists_and_deletes_role_assignments_by_name(cloud: Cloud, az: Az) -> None:
    principal = cloud.directory.service_principal("edge", "x").object_id
    who = ("--assignee-object-id", principal, "--assignee-principal-type", "ServicePrincipal")
    for role in CLUSTER_ROLES:
        az("role", "assignment", "create", *who, "--role", role.name, "--scope", CLUSTER)

    def listed() -> dict[str, str]:
        shown = az("role", "assignment", "list", "--scope", CLUSTER, "--fill-principal-name", "false")
        return {each["id"]: each["roleDefinitionName"] for each in shown if each["principalId"] == principal}

    assert sorted(listed().values()) == sorted(role.name for role in CLUSTER_ROLES)
    az("role", "assignment", "delete", "--ids", *listed())
    assert listed() == {}


def test_az_shows_cluster_and_gets_its_credentials(cloud: Cloud, az: Az, tmp_path: Path) -> None:
    resources, given, got = ManagedClusters(cloud.state), tmp_path / "admin", tmp_path / "got"
    given.write_text(yaml.safe_dump(KUBECONFIG))
    known = resources.find(CLUSTER)
    assert known
    resources.register(dataclasses.replace(known, id=f"{CLUSTER}-az", kubeconfig=str(given)))
    named = (*IN_GROUP, "--name", "plant-az")
    shown = az("aks", "show", *named)
    assert (shown["currentKubernetesVersion"], shown["fqdn"]) == ("1.34.4", "api.flex.internal")
    az("aks", "get-credentials", "--admin", *named, "--file", str(got))
    assert yaml.safe_load(got.read_text())["clusters"] == KUBECONFIG["clusters"]


def test_az_shows_and_upgrades_a_flex_node_pool(
    cloud: Cloud, az: Az, authority: CertificateAuthority, tmp_path: Path
) -> None:
    with running_kubernetes(authority, tmp_path) as (kubernetes, kubeconfig):
        aks = register_cluster(cloud, kubernetes, kubeconfig, "plant-pools")
        aks.store.set_timings(replace(QUICK, retry_after=1))  # without Retry-After, az waits for 30 seconds
        named = (*IN_GROUP, "--cluster-name", aks.name)
        pool, machine = f"{aks.id}/agentPools/flex", f"{aks.id}/agentPools/flex/machines/edge-1"
        body = {"properties": {"type": "FlexNodes", "orchestratorVersion": "1.35.4"}}
        for id_, document in ((pool, body), (machine, {"properties": {}})):
            address = f"{cloud.url}{id_}?api-version=2026-08-02-preview"
            words = ("--method", "put", "--url", address, "--body", json.dumps(document), "--resource", cloud.url)
            az("rest", *words)
            until(lambda: aks.is_idle, "the operation ends", 30)
        listed = {each["name"]: each["provisioningState"] for each in az("aks", "nodepool", "list", *named)}
        assert listed == {"system": "Succeeded", "flex": "Succeeded"}
        upgrade = ("--name", "flex", "--kubernetes-version", "1.36.3", "--yes")
        assert az("aks", "nodepool", "upgrade", *named, *upgrade)["provisioningState"] == "Succeeded"
        shown = az("aks", "machine", "show", *named, "--nodepool-name", "flex", "--machine-name", "edge-1")
        assert shown["id"] == machine
        az("aks", "nodepool", "delete-machines", *named, "--name", "flex", "--machine-names", "edge-1")
        assert az("aks", "machine", "list", *named, "--nodepool-name", "flex") == []
        az("aks", "nodepool", "delete", *named, "--name", "flex")
        assert [each["name"] for each in az("aks", "nodepool", "list", *named)] == ["system"]
