"""A machine joins with one command: the provider creates its configuration, issues one token, and
tracks its state.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from aks_flex_lab import node_agent
from aks_flex_lab.arm.managed_clusters import ManagedClusters
from aks_flex_lab.components.resource_provider import CLUSTER_ID, RESOURCE_GROUP_ID
from aks_flex_node.agent.config import loader
from tests.agents import differences, flex, install_agent
from tests.harness import Lines
from tests.providers import VERSION, InAzure, Provider
from tests.wait import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from aks_flex_lab.lab import Lab
    from aks_flex_lab.machines.machine import EdgeMachine

    Add = Callable[..., EdgeMachine]

CONTRIBUTOR = "b24988ac-6180-42a0-ab88-20f7382dd24c"


@pytest.fixture
def provider(lab: Lab) -> Iterator[Provider]:
    """Yields the lab's provider, without nodes before and after."""
    found = Provider(lab)
    yield found
    for node in found.ask("GET", f"{CLUSTER_ID}/flexNodeConfig?{VERSION}").document["value"]:
        found.delete(node["name"])


def with_agent(add_machine: Add, name: str) -> EdgeMachine:
    machine = add_machine(name)
    install_agent(machine)
    return machine


def tokens_of(lab: Lab, node: str) -> list[str]:
    found = lab.cluster.get("secrets", "-n", "kube-system", "-l", "flex.aks.azure.com/token")
    notes = [each["metadata"]["annotations"] for each in found["items"]] if found else []
    return [each["flex.aks.azure.com/node"] for each in notes if each["flex.aks.azure.com/node"] == node]


def requests_of(lab: Lab, token: str) -> list[str]:
    """Returns the decisions on the certificate signing requests of a token."""
    found = lab.cluster.get("csr")["items"]
    mine = [each for each in found if each["spec"]["username"] == f"system:bootstrap:{token}"]
    return [condition["type"] for each in mine for condition in each.get("status", {}).get("conditions", ())]


def test_config_url_joins_machine_once_and_unbootstrap_removes_traces(
    lab: Lab, add_machine: Add, provider: Provider
) -> None:
    machine = with_agent(add_machine, "url-1")
    before = machine.snapshot()
    url = provider.put("url-1", {"nodeConfig": {"maxPods": 42, "labels": {"environment": "prod"}}})
    assert provider.join_state("url-1") == "Created"
    assert len(tokens_of(lab, "url-1")) == 1

    said = flex(machine, "agent", "--config-url", url)

    node = lab.cluster.get("node", "url-1")
    assert node["metadata"]["labels"]["environment"] == "prod"
    assert node["status"]["capacity"]["pods"] == "42"
    until(lambda: provider.join_state("url-1") == "Joined", "the provider knows that it has joined")
    until(lambda: _ready(provider, "url-1") == "True", "the provider knows that it is Ready")
    until(lambda: tokens_of(lab, "url-1") == [], "the token is gone")
    assert provider.fetch(url).status == 404
    issued = [each["what"] for each in provider.audit("url-1")]
    assert issued == [
        "create",
        "key.bound",
        "configUrl.fetched",
        "token.used",
        "certificate.issued",
        "node.joined",
    ]
    assert url.partition("#")[0].rpartition("/")[2] not in said.out + said.err + json.dumps(provider.audit("url-1"))
    until(lambda: _serves(lab, "url-1"), "its serving certificate is approved")

    flex(machine, "unbootstrap", "--yes")
    until(lambda: lab.cluster.get("node", "url-1") is None, "the provider takes the node out of the cluster")
    assert differences(before, machine) == []


def _ready(provider: Provider, name: str) -> str:
    conditions = provider.get(name)["status"]["conditions"]
    return next(str(each["status"]) for each in conditions if each["type"] == "Ready")


def _serves(lab: Lab, node: str) -> bool:
    found = [each for each in lab.cluster.get("csr")["items"] if each["spec"]["username"] == f"system:node:{node}"]
    return any(
        each["spec"]["signerName"] == "kubernetes.io/kubelet-serving" and each.get("status", {}).get("certificate")
        for each in found
    )


def test_agent_accepts_fetched_bundle_and_fetch_sets_join_state(provider: Provider) -> None:
    url = provider.put("bundle-1", {"nodeConfig": {"taints": [{"key": "edge", "effect": "NoSchedule"}]}})

    answer = provider.fetch(url)

    assert (answer.status, answer.headers["cache-control"]) == (200, "no-store")
    config = loader.load_text(json.dumps(answer.document), "bundle", {}, {}).config
    assert (config.node.name, config.kubernetes.version) == ("bundle-1", "1.36.3")
    assert config.node.kubelet.server_url == "https://api.flex.internal:443"
    assert loader.missing_for_join(config) == []
    assert provider.join_state("bundle-1") == "ConfigFetched"
    assert answer.document["configVersion"] == provider.get("bundle-1")["configVersion"]


@pytest.mark.long
def test_bundle_admits_one_machine_and_new_token_admits_the_other(
    lab: Lab, add_machine: Add, provider: Provider
) -> None:
    bundle = provider.fetch(provider.put("twin", {})).document
    token = bundle["config"]["azure"]["bootstrapToken"]["token"].partition(".")[0]
    machines = [with_agent(add_machine, name) for name in ("twin-a", "twin-b")]
    config = {**bundle["config"], "agent": {"joinSeconds": 25}}
    for machine in machines:
        node_agent.write_configuration(machine, config)

    with ThreadPoolExecutor(2) as pool:
        codes = [*pool.map(lambda machine: flex(machine, "bootstrap", check=False).code, machines)]

    assert sorted(code == 0 for code in codes) == [False, True]
    assert requests_of(lab, token).count("Approved") == 1
    refused = [each for each in provider.audit("twin") if each["what"] == "certificate.denied"]
    # No request is denied if the first join has removed the token before the second kubelet uses it.
    assert requests_of(lab, token).count("Denied") == len(refused)
    assert provider.join_state("twin") == "Joined"

    for machine in machines:
        flex(machine, "unbootstrap", "--yes", "--drain-timeout", "5")
        machine.run("rm", "/etc/aks-flex-node/config.json")
    until(lambda: lab.cluster.get("node", "twin") is None, "the node is out of the cluster")
    loser = machines[0 if codes[0] else 1]
    fresh = provider.ask("POST", f"{provider.node('twin', '/regenerateToken')}?{VERSION}", {}).document
    assert int(fresh["configVersion"]) > int(bundle["configVersion"])
    flex(loser, "agent", "--config-url", fresh["configUrl"])
    until(lambda: provider.join_state("twin") == "Joined", "the provider knows that it has joined")
    flex(loser, "unbootstrap", "--yes", "--drain-timeout", "5")
    until(lambda: lab.cluster.get("node", "twin") is None, "the node is out of the cluster")


def test_join_completes_when_provider_restarts_during_it(lab: Lab, add_machine: Add, provider: Provider) -> None:
    machine = with_agent(add_machine, "patient")
    bundle = provider.fetch(provider.put("patient", {})).document
    token = bundle["config"]["azure"]["bootstrapToken"]["token"].partition(".")[0]
    node_agent.write_configuration(machine, bundle["config"])
    process = lab.supervisor.process("provider")
    assert process
    process.kill()

    with ThreadPoolExecutor(1) as pool:
        joining = pool.submit(flex, machine, "bootstrap")
        until(lambda: _asked(lab, token), "the kubelet has asked for its certificate")
        lab.up(Lines())
        joining.result()

    until(lambda: provider.join_state("patient") == "Joined", "the provider knows that it has joined")
    flex(machine, "unbootstrap", "--yes", "--drain-timeout", "5")
    until(lambda: lab.cluster.get("node", "patient") is None, "the node is out of the cluster")


def _asked(lab: Lab, token: str) -> bool:
    return any(each["spec"]["username"] == f"system:bootstrap:{token}" for each in lab.cluster.get("csr")["items"])


def test_azure_sdk_reaches_provider_through_arm_with_azure_roles(lab: Lab, provider: Provider) -> None:
    directory, assignments = lab.azure.directory, lab.azure.assignments
    operator = InAzure(lab, directory.service_principal("operator", "operator-secret"))
    stranger = InAzure(lab, directory.service_principal("stranger", "stranger-secret"))
    node = InAzure(lab, directory.service_principal("node", "node-secret-1"))
    assignments.put(RESOURCE_GROUP_ID, CONTRIBUTOR, operator.principal.object_id)
    path, other = provider.node("sp-1"), provider.node("sp-2")

    made = operator.ask(("PUT", path, _monitored(node)), ("PUT", other, {}), ("GET", path, None))
    assert [each["answer"]["name"] for each in made] == ["sp-1", "sp-2", "sp-1"]
    assert "node-secret-1" not in json.dumps(made)
    assert (
        stranger.ask(("GET", path, None), ("GET", provider.node("never"), None))
        == [{"status": 403, "code": "AuthorizationFailed"}] * 2
    )

    report = {"conditions": [{"type": "Ready", "status": "True"}], "agentVersion": "1"}
    own = node.ask(
        ("GET", path, None),
        ("POST", f"{path}/reportStatus", report),
        ("POST", f"{path}/listCredentials", None),
        ("GET", other, None),
        ("PUT", path, _monitored(node)),
    )
    assert (
        own[0]["answer"]["properties"]["config"]["azure"]["servicePrincipal"]["clientId"] == node.principal.client_id
    )
    assert own[2]["answer"]["servicePrincipal"]["clientSecret"] == "node-secret-1"
    assert [each.get("status") for each in own] == [None, None, None, 403, 403]
    assert _ready(provider, "sp-1") == "True"
    assert "lastSeen" in provider.get("sp-1")

    operator.ask(("DELETE", path, None))
    assert node.ask(("GET", path, None)) == [{"status": 404, "code": "ResourceNotFound"}]


def _monitored(node: InAzure) -> dict[str, Any]:
    principal = {"clientId": node.principal.client_id, "clientSecret": node.principal.secret}
    auth = {"method": "servicePrincipal", "servicePrincipal": principal}
    return {"properties": {"continuousMonitoring": True, "azureAuth": auth}}


def test_cluster_can_be_added_by_azure_id_alone(lab: Lab) -> None:
    known = ManagedClusters(lab.azure.state)
    [cluster] = known.clusters()
    other = f"{RESOURCE_GROUP_ID}/providers/Microsoft.ContainerService/managedClusters/by-arm"
    known.register(type(cluster)(**{**cluster.__dict__, "id": other}))

    said = lab.provider.run_cli_on_state("cluster", "add", other, "--force")

    assert "Kubernetes 1.36.3" in said.out
    provider = Provider(lab, other)
    try:
        until(lambda: provider.ask("PUT", f"{provider.node('a')}?{VERSION}", {}).status == 201, "it makes nodes")
        config = provider.get("a")["config"]
        assert config["azure"]["location"] == "westeurope"
        assert config["node"]["kubelet"]["dnsServiceIP"] == "198.19.128.10"
    finally:
        provider.delete("a")
        lab.provider.run_cli_on_state("cluster", "remove", other)
