"""Tests of Azure identities in the lab: tokens authenticate to its cluster, and machines have managed identities."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any

import pytest

from aks_flex_lab.entra.directory import TENANT_ID
from aks_flex_lab.snapshots import diff
from aks_flex_node.agent.identity.cloud_endpoints import AKS_SERVER_APP_ID
from tests.lab_machines import temporary_machine

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aks_flex_lab.entra.directory import EntraPrincipal
    from aks_flex_lab.lab import Lab
    from aks_flex_lab.machines.machine import EdgeMachine
    from aks_flex_lab.processes import CommandResult

LOGIN = f"https://login.flex.internal/{TENANT_ID}/oauth2/v2.0/token"
REVIEW = "https://api.flex.internal/apis/authentication.k8s.io/v1/selfsubjectreviews"
METADATA = "http://169.254.169.254/metadata/identity/oauth2/token?api-version=2018-02-01"
WHO_AM_I = json.dumps({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"})
GROUP = "9ca7e1b0-0000-4000-8000-000000000007"


@pytest.fixture(scope="module")
def edge(lab: Lab) -> Iterator[EdgeMachine]:
    with temporary_machine(lab, "identities", site="azure-site") as machine:
        yield machine


@pytest.fixture(scope="module")
def stranger(lab: Lab, edge: EdgeMachine) -> Iterator[EdgeMachine]:
    """Yields another machine at the same site."""
    with temporary_machine(lab, "stranger", site="azure-site") as machine:
        yield machine


def curl(machine: EdgeMachine, *words: str) -> CommandResult:
    return machine.run("curl", "-sS", "--retry", "3", "--retry-all-errors", "--max-time", "60", *words, check=False)


def token_by_secret(machine: EdgeMachine, principal: EntraPrincipal, audience: str = AKS_SERVER_APP_ID) -> str:
    form = {
        "grant_type": "client_credentials",
        "client_id": principal.client_id,
        "client_secret": "right",
        "scope": f"{audience}/.default",
    }
    words = [each for name, value in form.items() for each in ("--data-urlencode", f"{name}={value}")]
    return str(json.loads(curl(machine, *words, LOGIN).out)["access_token"])


def reviewed(machine: EdgeMachine, token: str) -> dict[str, Any]:
    """Returns the user as which the API server authenticates a token."""
    headers = ("-H", f"Authorization: Bearer {token}", "-H", "Content-Type: application/json")
    answer = curl(machine, *headers, "-d", WHO_AM_I, REVIEW)
    assert answer.ok, answer.err
    told: dict[str, Any] = json.loads(answer.out)
    return told


def user(machine: EdgeMachine, token: str) -> dict[str, Any]:
    found: dict[str, Any] = reviewed(machine, token)["status"]["userInfo"]
    return found


def of_the_machine(machine: EdgeMachine, *words: str) -> str:
    url = f"{METADATA}&resource={AKS_SERVER_APP_ID}{''.join(words)}"
    return str(json.loads(curl(machine, "-H", "Metadata: true", url).out)["access_token"])


def test_service_principal_has_object_id_and_groups_in_cluster(lab: Lab, edge: EdgeMachine) -> None:
    principal = lab.azure.directory.service_principal("kube-user", "right", groups=(GROUP,))
    found = user(edge, token_by_secret(edge, principal))
    assert found["username"] == principal.object_id
    assert set(found["groups"]) == {GROUP, "system:authenticated"}


def test_user_has_cluster_permissions_of_group(lab: Lab, edge: EdgeMachine) -> None:
    person = lab.azure.directory.user("eve@flex.internal", "right", groups=(GROUP,))
    form = f"grant_type=password&username={person.name}&password=right&client_id=x&scope={AKS_SERVER_APP_ID}/.default"
    token = json.loads(curl(edge, "-d", form, LOGIN).out)["access_token"]
    nodes = ("-o", "/dev/null", "-w", "%{http_code}", "-H", f"Authorization: Bearer {token}")
    assert user(edge, token)["username"] == person.object_id
    assert curl(edge, *nodes, "https://api.flex.internal/api/v1/nodes").out == "403"
    lab.cluster.run("create", "clusterrolebinding", "people", "--clusterrole=view", f"--group={GROUP}")
    try:
        assert curl(edge, *nodes, "https://api.flex.internal/api/v1/namespaces").out == "200"
    finally:
        lab.cluster.run("delete", "clusterrolebinding", "people")


def test_token_for_another_audience_is_rejected_by_cluster(lab: Lab, edge: EdgeMachine) -> None:
    principal = lab.azure.directory.service_principal("arm-user", "right")
    told = reviewed(edge, token_by_secret(edge, principal, "https://management.flex.internal"))
    assert (told["kind"], told["code"]) == ("Status", 401)


def test_machine_gets_token_only_while_identity_is_assigned(lab: Lab, edge: EdgeMachine) -> None:
    identity = lab.azure.directory.managed_identity("edge", "/subscriptions/s/resourceGroups/g/virtualMachines/edge")
    assert not curl(edge, "-H", "Metadata: true", METADATA).ok
    before = edge.snapshot()
    lab.azure.metadata.assign_identities(edge, identity)
    try:
        assert user(edge, of_the_machine(edge))["username"] == identity.object_id
        assert diff(before, edge.snapshot()) == []
    finally:
        lab.azure.metadata.assign_identities(edge)
    assert not curl(edge, "-H", "Metadata: true", METADATA).ok
    assert lab.supervisor.process("metadata-azure-site") is None


def test_machine_does_not_get_identity_of_another_machine(lab: Lab, edge: EdgeMachine, stranger: EdgeMachine) -> None:
    identity = lab.azure.directory.managed_identity("next", "/subscriptions/s/resourceGroups/g/virtualMachines/next")
    lab.azure.metadata.assign_identities(edge, identity)
    try:
        url = f"{METADATA}&resource={AKS_SERVER_APP_ID}"
        answer = curl(stranger, "-H", "Metadata: true", url)
        assert json.loads(answer.out)["error_description"] == "Identity not found"
    finally:
        lab.azure.metadata.assign_identities(edge)


def test_client_id_selects_among_several_identities(lab: Lab, edge: EdgeMachine) -> None:
    assigned = "/subscriptions/s/resourceGroups/g/providers/Microsoft.ManagedIdentity/userAssignedIdentities"
    one, two = (lab.azure.directory.managed_identity(name, f"{assigned}/{name}") for name in ("one", "two"))
    lab.azure.metadata.assign_identities(edge, one, two)
    try:
        token = of_the_machine(edge, f"&client_id={two.client_id}")
        claims = json.loads(base64.urlsafe_b64decode(token.split(".")[1] + "=="))
        assert (claims["oid"], claims["xms_mirid"]) == (two.object_id, two.resource_id)
        answer = curl(edge, "-H", "Metadata: true", f"{METADATA}&resource={AKS_SERVER_APP_ID}")
        assert "Multiple user assigned identities" in answer.out
    finally:
        lab.azure.metadata.assign_identities(edge)
