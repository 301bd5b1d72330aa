"""Tests of the templates: consistent with the contract and each other, with valid commands."""

from __future__ import annotations

import ast
import json
import re
import shlex
from pathlib import Path
from typing import Any

import hcl2
import pytest
import typer.main
import yaml

from aks_flex_lab.arm.deployments.expressions import DeploymentTarget, is_expression, parse_expression
from aks_flex_lab.arm.deployments.templates import plan_deployment
from aks_flex_node.agent.cli.app import app

ROOT = Path(__file__).parents[2]
TEMPLATES = ROOT / "templates"
CONTRACT = json.loads((ROOT / "api/swagger/flexnode.json").read_text())
KIND, VERSION = "Microsoft.ContainerService/managedClusters/flexNodeConfig", CONTRACT["info"]["version"]
POOL_KIND = "Microsoft.ContainerService/managedClusters/flexNodePools"
PAIRS = ["flex-node", "flex-nodes"]
MODULES = ["one", "many"]

Names = dict[str, "Names"]  # names of properties, nested


def arm(name: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((TEMPLATES / "arm" / f"{name}.json").read_text())
    return document


def bicep(name: str) -> str:
    return (TEMPLATES / "bicep" / f"{name}.bicep").read_text()


def terraform(name: str) -> dict[str, Any]:
    document: dict[str, Any] = hcl2.loads((TEMPLATES / "terraform" / name / "main.tf").read_text())
    return document


def unknown(names: Names, schema: dict[str, Any], at: str = "properties") -> list[str]:
    """Returns names that the contract does not contain, or that only the service writes."""
    reference = str(schema.get("$ref", "")).rpartition("/")[2]
    known = (CONTRACT["definitions"].get(reference) or schema).get("properties", {})
    found: list[str] = []
    for name, below in names.items():
        if name not in known or known[name].get("readOnly"):
            found.append(f"{at}.{name}")
        else:
            found += unknown(below, known[name], f"{at}.{name}")
    return found


PROPERTIES = {"$ref": "#/definitions/FlexNodeConfigProperties"}
POOL_PROPERTIES = {"$ref": "#/definitions/FlexNodePoolProperties"}


def names_of(value: Any) -> Names:
    """Returns the property names in an ARM template, where a function can also create an object."""
    if isinstance(value, dict):
        return {key: names_of(each) for key, each in value.items()}
    return made_by(parse_expression(value)) if isinstance(value, str) and is_expression(value) else {}


def made_by(tree: ast.expr) -> Names:
    match tree:
        case ast.Call(func=ast.Name(id="createObject")):
            return {str(each.value): {} for each in tree.args[::2] if isinstance(each, ast.Constant)}
        case ast.Call(func=ast.Name(id="if_")):
            return made_by(tree.args[1])
    return {}


def bicep_names(text: str) -> Names:
    """Returns the property names of the deployed resource; every property starts a line, and every
    block ends on one.
    """
    names: Names = {}
    open_: list[Names] = [names]
    for line in text.partition("  properties: {\n")[2].splitlines():
        found = re.match(r"\s*(\w+): (.*)$", line)
        if found:
            open_[-1][found[1]] = {}
            if found[2].endswith("{"):
                open_.append(open_[-1][found[1]])
        elif line.strip().startswith("}"):
            open_.pop()
        if not open_:
            break
    return names


def bicep_parameters(text: str) -> dict[str, tuple[str, dict[str, Any]]]:
    """Returns the parameters by name: their ARM type and decorators."""
    found = {}
    for decorators, name, kind, default in re.findall(
        r"((?:^@.*\n)*)^param (\w+) (\w+)(?: = (.*))?$", text, re.MULTILINE
    ):
        said: dict[str, Any] = {
            key: int(value) for key, value in re.findall(r"^@(\w+)\((\d+)\)$", decorators, re.MULTILINE)
        }
        if allowed := re.search(r"^@allowed\((.*)\)$", decorators, re.MULTILINE):
            said["allowedValues"] = yaml.safe_load(allowed[1])
        if default:
            said["defaultValue"] = yaml.safe_load(default)
        description = re.search(r"^@description\('(.*)'\)$", decorators, re.MULTILINE)
        said["description"] = description[1].replace("\\'", "'") if description else ""
        found[name] = (("secure" if "@secure()" in decorators else "") + kind, said)
    return found


@pytest.mark.parametrize("name", PAIRS)
def test_arm_template_uses_only_properties_of_api_contract(name: str) -> None:
    [resource] = arm(name)["resources"]
    assert (resource["type"], resource["apiVersion"]) == (KIND, VERSION)
    assert unknown(names_of(resource["properties"]), PROPERTIES) == []
    assert names_of(resource["properties"])["azureAuth"]["servicePrincipal"] == {"clientId": {}, "clientSecret": {}}


@pytest.mark.parametrize("name", PAIRS)
def test_parameter_file_matches_its_template_and_has_no_secrets(name: str) -> None:
    given = json.loads((TEMPLATES / "arm" / f"{name}.parameters.json").read_text())["parameters"]
    planned = plan_deployment(arm(name), given, DeploymentTarget("sub-1", "edge", "first"))
    assert planned.resources
    assert not [each for each in given if planned.parameters.types[each].startswith("Secure")]


@pytest.mark.parametrize("name", [*PAIRS, "flex-pool"])
def test_arm_secrets_are_secure_parameters_and_secure_outputs(name: str) -> None:
    template = arm(name)
    for parameter, definition in template["parameters"].items():
        secure = definition["type"].lower().startswith("secure")
        assert secure is ("secret" in parameter.lower()), parameter
    for output in template["outputs"].values():
        secure = output["type"].lower().startswith("secure")
        assert secure is bool(re.search(r"list\w+\(|[sS]ecret", json.dumps(output)))


@pytest.mark.parametrize("name", [*PAIRS, "flex-pool"])
def test_bicep_parameters_match_arm_template(name: str) -> None:
    wanted = {}
    for parameter, definition in arm(name)["parameters"].items():
        said = {key: value for key, value in definition.items() if key not in {"type", "metadata"}}
        description = definition["metadata"]["description"]
        wanted[parameter] = (definition["type"].lower(), {**said, "description": description})
    found = {key: (kind.lower(), said) for key, (kind, said) in bicep_parameters(bicep(name)).items()}
    assert found == wanted


@pytest.mark.parametrize("name", PAIRS)
def test_bicep_resource_and_outputs_match_arm_template(name: str) -> None:
    [resource] = arm(name)["resources"]
    text = bicep(name)
    assert f"'{KIND}@{VERSION}' = {'[for ' if 'copy' in resource else '{'}" in text
    assert bicep_names(text) == names_of(resource["properties"])
    outputs = re.findall(r"(@secure\(\)\n)?output (\w+) (\w+) = ", text)
    assert {output: ("secure" if secure else "") + kind for secure, output, kind in outputs} == {
        output: definition["type"] for output, definition in arm(name)["outputs"].items()
    }


def test_pool_templates_use_only_properties_of_api_contract() -> None:
    pool, nodes = arm("flex-pool")["resources"]
    assert [(each["type"], each["apiVersion"]) for each in (pool, nodes)] == [(POOL_KIND, VERSION), (KIND, VERSION)]
    assert unknown(names_of(pool["properties"]), POOL_PROPERTIES) == []
    assert names_of(nodes["properties"]) == {"poolName": {}}
    resources = [plain(each)["azapi_resource"] for each in terraform("pool")["resource"]]
    found = {name: resource for each in resources for name, resource in each.items()}
    assert [found[name]["type"] for name in ("pool", "node")] == [f"{POOL_KIND}@{VERSION}", f"{KIND}@{VERSION}"]
    assert unknown(terraform_names(found["pool"]["body"])["properties"], POOL_PROPERTIES) == []
    assert found["node"]["body"] == {"properties": {"poolName": "${azapi_resource.pool.name}"}}
    used = set(re.findall(r"var\.(\w+)", (TEMPLATES / "terraform" / "pool" / "main.tf").read_text()))
    assert used == set(blocks("pool", "variable"))


def test_bicep_pool_has_resources_and_outputs_of_arm_template() -> None:
    text, (pool, nodes) = bicep("flex-pool"), arm("flex-pool")["resources"]
    assert f"'{POOL_KIND}@{VERSION}' = {{" in text
    assert f"'{KIND}@{VERSION}' = [for name in nodeNames" in text
    assert bicep_names(text) == names_of(pool["properties"])
    assert bicep_names(text.partition("resource nodes")[2]) == names_of(nodes["properties"])
    assert re.findall(r"output (\w+) (\w+) = ", text) == [("poolId", "string")]
    assert {name: each["type"] for name, each in arm("flex-pool")["outputs"].items()} == {"poolId": "string"}


def test_arm_and_bicep_call_list_config_url_from_api_contract() -> None:
    [path] = [each for each in CONTRACT["paths"] if each.endswith("/listConfigUrl")]
    assert "post" in CONTRACT["paths"][path]
    assert "listConfigUrl(" in json.dumps(arm("flex-node")["outputs"])
    assert ".listConfigUrl().configUrl" in bicep("flex-node")


def plain(value: Any) -> Any:
    """Returns HCL values without quotes, and the object at the end of a condition."""
    if isinstance(value, dict):
        return {key.strip('"'): plain(each) for key, each in value.items() if not key.startswith("__")}
    if isinstance(value, list):
        return [plain(each) for each in value]
    if isinstance(value, str) and (made := re.fullmatch(r"\$\{.* \? null : (\{.*\})\}", value)):
        return plain(hcl2.loads(f"value = {made[1]}\n")["value"])
    return value.strip('"') if isinstance(value, str) else value


def blocks(module: str, kind: str) -> dict[str, Any]:
    """Returns the blocks of a kind by name."""
    return {key: value for each in terraform(module)[kind] for key, value in plain(each).items()}


def terraform_names(value: Any) -> Names:
    return {key: terraform_names(each) for key, each in value.items()} if isinstance(value, dict) else {}


def merged(one: Names, other: Names) -> Names:
    return {key: merged(one.get(key, {}), other.get(key, {})) for key in {**one, **other}}


@pytest.mark.parametrize("module", MODULES)
def test_terraform_uses_only_properties_of_api_contract(module: str) -> None:
    node = blocks(module, "resource")["azapi_resource"]["node"]
    assert node["type"] == f"{KIND}@{VERSION}"
    names = merged(terraform_names(node["body"]), terraform_names(node["sensitive_body"]))
    assert list(names) == ["properties"]
    assert unknown(names["properties"], PROPERTIES) == []
    assert names["properties"]["azureAuth"]["servicePrincipal"].keys() == {"clientId", "clientSecret"}
    [secret] = node["sensitive_body_version"]
    assert secret == "properties.azureAuth.servicePrincipal.clientSecret"
    assert "clientSecret" not in json.dumps(node["body"])
    assert (module == "many") is ("for_each" in node)


@pytest.mark.parametrize("module", MODULES)
def test_terraform_issues_config_urls_only_on_request_and_as_sensitive(module: str) -> None:
    action = blocks(module, "resource")["azapi_resource_action"]["config_url"]
    assert (action["type"], action["action"], action["method"]) == (f"{KIND}@{VERSION}", "listConfigUrl", "POST")
    assert (action["response_export_values"], action["sensitive_response_export_values"]) == ([], ["configUrl"])
    asked = action.get("for_each") or action.get("count")
    variables = blocks(module, "variable")
    [switch] = [each for each in variables if each.startswith("issue_config_url")]
    assert asked.startswith(f"${{var.{switch} ?")
    assert variables[switch]["default"] is False
    for name, output in blocks(module, "output").items():
        assert output.get("sensitive", False) is ("url" in name)


@pytest.mark.parametrize("module", MODULES)
def test_terraform_client_secrets_are_sensitive_and_ephemeral(module: str) -> None:
    variables = blocks(module, "variable")
    [secret] = [each for each in variables if re.fullmatch("client_secrets?", each)]
    assert variables[secret]["sensitive"] is True
    assert variables[secret]["ephemeral"] is True
    used = set(re.findall(r"var\.(\w+)", (TEMPLATES / "terraform" / module / "main.tf").read_text()))
    assert used == set(variables)


CLOUD_INIT = ["join-by-url", "join-by-identity"]


def cloud_init(name: str) -> dict[str, Any]:
    text = (TEMPLATES / "cloud-init" / f"{name}.yaml").read_text()
    assert text.startswith("#cloud-config\n")
    document: dict[str, Any] = yaml.safe_load(text)
    return document


def commands(document: dict[str, Any]) -> list[list[str]]:
    """Returns every command of the agent in a document."""
    scripts = [line for file in document["write_files"] for line in file["content"].splitlines()]
    typed = [part for line in scripts for part in line.split(" | ") if part.strip().startswith("aks-flex-node ")]
    lines = [each for each in document["runcmd"] if each[0] == "aks-flex-node"]
    return [*lines, *(shlex.split(each) for each in typed)]


@pytest.mark.parametrize("name", CLOUD_INIT)
def test_cloud_init_uses_valid_agent_options(name: str) -> None:
    cli = typer.main.get_command(app)
    [words] = commands(cloud_init(name))
    command = cli.commands[words[1]]  # type: ignore[attr-defined]
    context = command.make_context("agent", words[2:], resilient_parsing=False)
    assert context.params["config_url_file"]


@pytest.mark.parametrize("name", CLOUD_INIT)
def test_cloud_init_files_are_root_only_in_run_and_deleted_at_end(name: str) -> None:
    document = cloud_init(name)
    assert set(document) == {"write_files", "runcmd"}
    for file in document["write_files"]:
        assert (file["owner"], file["permissions"]) == ("root:root", "0600")
        assert file["path"].startswith("/run/")
        assert ["rm", "-f", file["path"]] == document["runcmd"][-1]


def enrolment_unit() -> tuple[dict[str, Any], dict[str, list[str]]]:
    """Returns the file of the enrolment's URL, and the settings of the service by name."""
    url, unit = cloud_init("enrol")["write_files"]
    settings: dict[str, list[str]] = {}
    for line in unit["content"].splitlines():
        if "=" in line:
            settings.setdefault(line.partition("=")[0], []).append(line.partition("=")[2])
    return url, settings


def test_cloud_init_enrols_with_valid_options_in_the_background() -> None:
    url, settings = enrolment_unit()
    [start] = settings["ExecStart"]
    program, command, *words = shlex.split(start)
    agent = typer.main.get_command(app).commands[command]  # type: ignore[attr-defined]
    context = agent.make_context(command, words, resilient_parsing=False)
    assert (program, str(context.params["config_url_file"])) == ("aks-flex-node", url["path"])
    commands_of_boot = cloud_init("enrol")["runcmd"]
    assert commands_of_boot[-1] == ["systemctl", "enable", "--now", "--no-block", "aks-flex-node-enrol.service"]
    assert not [each for each in commands_of_boot if each[0] in {"aks-flex-node", "rm"}]


def test_cloud_init_keeps_enrolment_url_until_the_machine_has_joined() -> None:
    """A failed command and a reboot find the URL again, because only what follows a success removes it."""
    url, settings = enrolment_unit()
    assert (url["owner"], url["permissions"]) == ("root:root", "0600")
    assert url["path"].startswith("/etc/aks-flex-node/")  # /run is empty after a reboot
    assert (settings["Type"], settings["Restart"]) == (["oneshot"], ["on-failure"])
    assert settings["WantedBy"] == ["multi-user.target"]
    assert settings["ConditionPathExists"] == [url["path"]]
    unit = cloud_init("enrol")["write_files"][1]["path"]
    assert settings["ExecStartPost"] == [
        f"rm -f {url['path']}",
        "systemctl --no-reload disable aks-flex-node-enrol.service",
        f"rm -f {unit}",
    ]


def test_cloud_init_by_identity_passes_no_secret_as_argument() -> None:
    [script] = [each["content"] for each in cloud_init("join-by-identity")["write_files"]]
    assert f"/listConfigUrl?api-version={VERSION}" in script
    for line in script.splitlines():
        assert not re.search(r'(curl|aks-flex-node)[^|]*\$(token|url)"', line)
