"""Tests of the templates: deployed with the real az to the lab's Azure and a real resource provider."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.az_extension.warm_az import warmed
from tests.azure_cli import Az
from tests.service.lab.cloud_harness import CLUSTER, OWNER, READER
from tests.service.lab.deployment_harness import TEMPLATES, running_whole
from tests.service.rp.api.bodies import client_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from aks_flex_lab.pki import CertificateAuthority
    from aks_flex_lab.processes import CommandResult
    from tests.service.lab.deployment_harness import Whole

GROUP = CLUSTER.partition("/providers/")[0]
ONE, MANY, POOL = (TEMPLATES / "arm" / f"{name}.json" for name in ("flex-node", "flex-nodes", "flex-pool"))
CONTRIBUTOR = "b24988ac-6180-42a0-ab88-20f7382dd24c"
CLIENT = "5b3e11a5-4f00-4c00-8000-00000000c11e"
CANARY = "canary-of-a-client-secret"


@pytest.fixture(scope="module")
def whole(authority: CertificateAuthority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Whole]:
    with running_whole(authority, tmp_path_factory.mktemp("whole")) as whole:
        yield whole


@pytest.fixture(scope="module")
def owner(whole: Whole, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Az]:
    with warmed(Az.signed_in(whole.cloud, tmp_path_factory.mktemp("owner"), OWNER, GROUP)) as az:
        yield az


@pytest.fixture(scope="module")
def reader(whole: Whole, tmp_path_factory: pytest.TempPathFactory) -> Az:
    return Az.signed_in(whole.cloud, tmp_path_factory.mktemp("reader"), READER, GROUP)


def deploy(az: Az, verb: str, name: str, source: Path, *, check: bool = True, **parameters: Any) -> CommandResult:
    given = {key: {"value": value} for key, value in {"clusterName": "plant", **parameters}.items()}
    file = az.folder / f"{name}.parameters.json"
    file.write_text(json.dumps(given))
    words = ("--name", name, "--resource-group", "edge", "--template-file", str(source), "--parameters", f"@{file}")
    return az.run("deployment", "group", verb, *words, check=check)


def secure_outputs(az: Az, whole: Whole, name: str) -> CommandResult:
    """Returns a deployment's secure outputs, as a template that uses them gets them."""
    action = f"{GROUP}/providers/Microsoft.Resources/deployments/{name}/listOutputsWithSecureValues"
    address = f"{whole.cloud.url}{action}?api-version=2025-04-01"
    return az.run("rest", "--method", "post", "--url", address, "--resource", whole.cloud.url, check=False)


def shown(az: Az, name: str) -> Any:
    return az("deployment", "group", "show", "--name", name, "--resource-group", "edge")["properties"]


def test_deployment_is_validated_created_shown_and_updated(whole: Whole, owner: Az) -> None:
    wanted: dict[str, Any] = {"nodeName": "edge-1", "labels": {"site": "north"}, "maxPods": 50}
    validated = json.loads(deploy(owner, "validate", "one", ONE, **wanted).out)["properties"]
    assert [each["id"] for each in validated["validatedResources"]] == [f"{CLUSTER}/flexNodeConfig/edge-1"]
    assert whole.nodes.get("edge-1").status == 404

    deploy(owner, "create", "one", ONE, **wanted)

    node = whole.nodes.get("edge-1").properties
    assert node["nodeConfig"] == {**node["nodeConfig"], "labels": {"site": "north"}, "maxPods": 50}
    done = shown(owner, "one")
    assert (done["provisioningState"], done["mode"]) == ("Succeeded", "Incremental")
    assert done["outputs"]["nodeId"] == {"type": "String", "value": f"{CLUSTER}/flexNodeConfig/edge-1"}
    assert done["parameters"]["nodeName"] == {"type": "String", "value": "edge-1"}
    deploy(owner, "create", "one", ONE, **{**wanted, "maxPods": 60})
    assert whole.nodes.get("edge-1").properties["nodeConfig"]["maxPods"] == 60


def test_config_url_is_output_only_on_request_and_only_as_secure_output(whole: Whole, owner: Az, reader: Az) -> None:
    deploy(owner, "create", "plain", ONE, nodeName="url-1")
    assert json.loads(secure_outputs(owner, whole, "plain").out)["configUrl"] == ""
    assert whole.nodes.audit("url-1", what="regenerateToken").json["value"] == []

    made = deploy(owner, "create", "secure", ONE, nodeName="url-1", issueConfigUrls=True)
    url = json.loads(secure_outputs(owner, whole, "secure").out)["configUrl"]

    assert whole.nodes.fetch(url).status == 200
    assert json.loads(made.out)["properties"]["outputs"]["configUrl"] == {"type": "SecureString"}
    words = ("--name", "secure", "--resource-group", "edge")
    told = [made, reader.run("deployment", "group", "show", *words)]
    secret = url.rpartition("/")[2].partition("#")[0]
    assert all(secret not in each.out + each.err for each in told)
    assert not [file for file in whole.cloud.state.rglob("*") if file.is_file() and secret in file.read_text()]
    assert secret not in whole.cloud.log.read_text()
    refused = secure_outputs(reader, whole, "secure")
    assert "listOutputsWithSecureValues/action" in refused.err


def test_template_loop_creates_twenty_nodes_without_leaking_secrets(whole: Whole, owner: Az) -> None:
    nodes = [
        {"name": f"loop-{number}", "clientId": client_of(str(number)), "labels": {"n": str(number)}}
        for number in range(20)
    ]
    secrets = {each["name"]: f"{CANARY}-{each['name']}" for each in nodes}
    method = {"azureAuthMethod": "servicePrincipal", "kubernetesAuthMethod": "bootstrapToken"}
    wanted: dict[str, Any] = {"nodes": nodes, "clientSecrets": secrets, "labels": {"site": "north"}, **method}
    made = deploy(owner, "create", "many", MANY, **wanted)

    found = json.loads(made.out)["properties"]["outputs"]["nodeIds"]["value"]
    assert [each.rpartition("/")[2] for each in found] == [each["name"] for each in nodes]
    for number, each in enumerate(nodes):
        labels = whole.nodes.get(str(each["name"])).properties["nodeConfig"]["labels"]
        assert labels == {"site": "north", "n": str(number)}
    credentials = whole.nodes.credentials("loop-7").json["servicePrincipal"]
    assert credentials["clientSecret"] == f"{CANARY}-loop-7"
    words = ("--name", "many", "--resource-group", "edge")
    told = [made, owner.run("deployment", "group", "show", *words)]
    assert all(CANARY not in each.out + each.err for each in told)
    assert not [file for file in whole.cloud.state.rglob("*") if file.is_file() and CANARY in file.read_text()]
    assert CANARY not in whole.cloud.log.read_text() + whole.provider.log


def test_redeployment_without_secret_keeps_existing_secret(whole: Whole, owner: Az) -> None:
    wanted: dict[str, Any] = {
        "nodeName": "kept-1",
        "azureAuthMethod": "servicePrincipal",
        "clientId": client_of("kept"),
    }
    deploy(owner, "create", "kept", ONE, **wanted, clientSecret=CANARY)
    deploy(owner, "create", "kept", ONE, **wanted)
    assert whole.nodes.credentials("kept-1").json["servicePrincipal"]["clientSecret"] == CANARY


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({"nodeName": "wrong-1", "driftPolicy": "ignore"}, "'ignore' is not part of the allowed value(s)"),
        ({"nodeName": "wrong-1", "maxPods": 2000}, "its maxValue is 1024"),
        ({"nodeName": "wrong-1", "pods": 20}, "'pods'"),
        ({"nodeName": "wrong/1"}, "incorrect segment lengths"),
    ],
)
def test_invalid_template_parameter_is_refused_before_deployment(
    whole: Whole, owner: Az, parameters: dict[str, Any], said: str
) -> None:
    refused = deploy(owner, "create", "wrong", ONE, check=False, **parameters)
    assert not refused.ok
    assert said in refused.err
    assert whole.nodes.get("wrong-1").status == 404
    assert (
        "(DeploymentNotFound)"
        in owner.run("deployment", "group", "show", "--name", "wrong", "--resource-group", "edge", check=False).err
    )


def test_deployment_fails_for_refused_nodes_and_keeps_the_others(whole: Whole, owner: Az) -> None:
    nodes = [{"name": "part-1"}, {"name": "-part-2"}, {"name": "part-3", "taints": [{"key": "a", "effect": "Never"}]}]
    failed = deploy(owner, "create", "part", MANY, check=False, nodes=nodes)
    assert not failed.ok
    for said in ("DeploymentFailed", "flexNodeConfig/-part-2", "InvalidResourceName", "flexNodeConfig/part-3"):
        assert said in failed.err
    assert whole.nodes.get("part-1").status == 200
    done = shown(owner, "part")
    assert done["provisioningState"] == "Failed"
    assert [each["id"].rpartition("/")[2] for each in done["outputResources"]] == ["part-1"]
    assert {each["target"].rpartition("/")[2] for each in done["error"]["details"]} == {"-part-2", "part-3"}


def test_reader_cannot_deploy(whole: Whole, reader: Az) -> None:
    for verb in ("validate", "create"):
        refused = deploy(reader, verb, "not", ONE, check=False, nodeName="not-1")
        assert "Microsoft.Resources/deployments/validate/action" in refused.err
    assert whole.nodes.get("not-1").status == 404


def test_template_grants_no_permission_that_its_user_lacks(whole: Whole, owner: Az, tmp_path: Path) -> None:
    """A config URL contains the node's secrets: a user without permission must not get it through a template."""
    wanted: dict[str, Any] = {
        "nodeName": "right-1",
        "azureAuthMethod": "servicePrincipal",
        "clientId": client_of("right"),
    }
    deploy(owner, "create", "right", ONE, **wanted, clientSecret=CANARY)
    contributor = Az.signed_in(whole.cloud, tmp_path, CONTRIBUTOR, GROUP)
    deploy(contributor, "create", "right", ONE, **wanted)
    refused = deploy(contributor, "create", "right", ONE, check=False, **wanted, issueConfigUrls=True)
    assert "DeploymentOutputEvaluationFailed" in refused.err
    assert "AuthorizationFailed" in refused.err
    assert "configUrl" not in json.loads(secure_outputs(contributor, whole, "right").out)


def test_pool_is_deployed_with_nodes_and_changed_without_changing_them(whole: Whole, owner: Az) -> None:
    template: dict[str, Any] = {
        "continuousMonitoring": True,
        "nodeConfig": {"labels": {"site": "north"}, "maxPods": 50},
    }
    given: dict[str, Any] = {
        "poolName": "edge",
        "poolDescription": "Pumps",
        "template": template,
        "nodeNames": ["pool-1", "pool-2"],
    }
    validated = json.loads(deploy(owner, "validate", "pool", POOL, **given).out)["properties"]
    nodes = [f"{CLUSTER}/flexNodeConfig/{name}" for name in given["nodeNames"]]
    assert {each["id"] for each in validated["validatedResources"]} == {f"{CLUSTER}/flexNodePools/edge", *nodes}
    assert whole.nodes.pool("GET", "edge").status == 404

    deploy(owner, "create", "pool", POOL, **given)

    assert shown(owner, "pool")["outputs"]["poolId"]["value"] == f"{CLUSTER}/flexNodePools/edge"
    made = whole.nodes.pool("GET", "edge").properties
    assert (made["template"], made["description"], made["nodeCount"]) == (template, "Pumps", 2)
    deploy(owner, "create", "pool", POOL, **given)
    assert whole.nodes.pool("GET", "edge").properties["revision"] == 1, "the same template is no revision"

    changed: dict[str, Any] = {**given, "template": {**template, "nodeConfig": {"maxPods": 60}}}
    deploy(owner, "create", "pool", POOL, **changed)
    after = whole.nodes.pool("GET", "edge").properties
    assert (after["revision"], after["pendingNodeCount"]) == (2, 2)
    node = whole.nodes.get("pool-1").properties
    assert (node["poolRevision"], node["config"]["node"]["maxPods"]) == (1, 50)


def test_failed_deployment_of_a_pool_names_the_reason_and_creates_no_nodes(whole: Whole, owner: Az) -> None:
    principal = {"method": "servicePrincipal", "servicePrincipal": {"clientId": CLIENT}}
    given: dict[str, Any] = {"poolName": "shared", "template": {"azureAuth": principal}, "nodeNames": ["pool-3"]}
    refused = deploy(owner, "create", "shared", POOL, check=False, **given)
    assert "could act as each other" in refused.err
    assert whole.nodes.get("pool-3").status == 404
