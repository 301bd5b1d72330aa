"""Follows the remedies of configuration files."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest
import yaml

from aks_flex_node.agent.policy import POLICY_FILE
from tests.client_certificates import client_pem
from tests.remedies.catalogue import advice, command
from tests.unit.agent.builders import JOIN
from tests.unit.agent.config.builders import CLUSTER_ID, TOKEN, settings

if TYPE_CHECKING:
    from tests.remedies.agent.sandbox import Sandbox

CERTIFICATE = "/var/lib/kubelet/pki/kubelet-client-current.pem"
VALIDATE = ("config", "validate")
# Nothing is reachable, so that a join ends with its checks, before any change.
CLOSED = "https://127.0.0.1:1"
MANAGED: dict[str, object] = {
    "continuousMonitoring": True,
    "provider.url": CLOSED,
    "node.kubelet.serverURL": CLOSED,
    "artifacts.baseURL": CLOSED,
    "artifacts.attempts": 1,
}
CLUSTER: dict[str, object] = {"azure.targetCluster.resourceId": CLUSTER_ID}
IDENTITY: dict[str, object] = {"azure.managedIdentity": {}}


@pytest.mark.remedy("config-not-found")
def test_missing_configuration_file_is_created_and_filled_in(machine: Sandbox) -> None:
    assert machine.flex(*VALIDATE).error == "config-not-found"

    create = command("config-not-found", "aks-flex-node config init")
    assert machine.types(create).code == 0
    advice("config-not-found", "and fill it in")
    template = machine.sh(f"cat {create[-1]}")
    for setting, value in JOIN.items():
        template = re.sub(rf'(?m)^( +{setting.rpartition(".")[2]}): "<.*>"', rf'\1: "{value}"', template)
    machine.write("/etc/aks-flex-node/bootstrap-token", TOKEN)
    machine.write(create[-1], template)
    assert machine.flex(*VALIDATE).code == 0

    machine.sh(f"mv {create[-1]} /etc/aks-flex-node/mine.yaml")
    assert machine.flex(*VALIDATE).error == "config-not-found"
    assert (
        machine.flex(*VALIDATE, *command("config-not-found", "--config", FILE="/etc/aks-flex-node/mine.yaml")).code
        == 0
    )


@pytest.mark.remedy("config-ambiguous")
def test_one_of_two_configuration_files_is_selected_or_removed(machine: Sandbox) -> None:
    for name in ("config.json", "config.yaml"):
        machine.configure(path=f"/etc/aks-flex-node/{name}")
    assert machine.flex(*VALIDATE).error == "config-ambiguous"

    chosen = command("config-ambiguous", "--config", FILE="/etc/aks-flex-node/config.json")
    assert machine.flex(*VALIDATE, *chosen).code == 0
    advice("config-ambiguous", "Remove all but one of the files")
    machine.sh("rm /etc/aks-flex-node/config.yaml")
    assert machine.flex(*VALIDATE).code == 0


@pytest.mark.remedy("config-unreadable")
def test_unreadable_file_is_read_by_root_or_written_as_utf_8(machine: Sandbox) -> None:
    machine.configure()
    machine.sh("chmod 755 /etc/aks-flex-node")
    assert machine.flex(*VALIDATE, user="nobody").error == "config-unreadable"
    advice("config-unreadable", "Run the command with `sudo`.")
    assert machine.flex(*VALIDATE).code == 0

    machine.sh("cd /etc/aks-flex-node && iconv -t UTF-16 config.json >new && mv new config.json")
    assert machine.flex(*VALIDATE).error == "config-unreadable"
    advice("config-unreadable", "write the file again as UTF-8 text")
    machine.sh("cd /etc/aks-flex-node && iconv -f UTF-16 -t UTF-8 config.json >new && mv new config.json")
    assert machine.flex(*VALIDATE).code == 0


@pytest.mark.remedy("config-syntax")
def test_syntax_error_is_corrected_or_the_file_renamed(machine: Sandbox) -> None:
    correct = settings(JOIN)
    machine.write("/etc/aks-flex-node/config.json", correct[:-1] + ",}")
    assert machine.flex(*VALIDATE).error == "config-syntax"
    machine.write("/etc/aks-flex-node/config.json", correct)
    assert machine.types(command("config-syntax", "aks-flex-node config validate")).code == 0

    machine.write("/etc/aks-flex-node/config.json", f"# mine\n{yaml.safe_dump(yaml.safe_load(correct))}")
    assert machine.flex(*VALIDATE).error == "config-syntax"
    advice("config-syntax", "one in `.yaml` or `.yml` as YAML")
    machine.sh("mv /etc/aks-flex-node/config.json /etc/aks-flex-node/config.yaml")
    assert machine.flex(*VALIDATE).code == 0


@pytest.mark.parametrize(
    ("content", "mode", "problem"),
    [
        ("forbid: [", "0600", "is not valid YAML"),
        ("forbid: [everything]", "0600", "forbids 'everything', which is unknown"),
        ("forbids: []", "0600", "has the unknown key 'forbids'"),
        ("forbid: []", "0666", "can be changed by other users than root"),
    ],
)
def test_validation_fails_if_the_policy_cannot_be_used(
    machine: Sandbox, content: str, mode: str, problem: str
) -> None:
    """A misspelled policy forbids everything, which an administrator must not learn from the first refused update."""
    machine.configure()
    machine.write(POLICY_FILE, content)
    machine.sh(f"chmod {mode} {POLICY_FILE}")
    refused = machine.flex(*VALIDATE)
    assert (refused.error, refused.code) == ("refused-by-policy", 4)
    assert f"{POLICY_FILE} {problem}" in refused.err
    assert json.loads(machine.flex(*VALIDATE, "--json").out)["error"] == "refused-by-policy"

    advice("refused-by-policy", f"correct `{POLICY_FILE}` on the machine, as root")
    machine.write(POLICY_FILE, "forbid: [unbootstrap]")
    machine.sh(f"chmod 0644 {POLICY_FILE}")
    assert "forbids unbootstrap" in machine.flex(*VALIDATE).out


@pytest.mark.remedy("config-invalid")
def test_all_listed_problems_of_a_configuration_are_corrected(machine: Sandbox) -> None:
    machine.configure({"node.maxPods": 0, "node.lables": {"a": "b"}, "kubernetes.version": ""})
    refused = machine.flex(*VALIDATE)
    assert refused.error == "config-invalid"
    advice("config-invalid", "the message suggests the closest known key")
    assert "node.labels" in refused.err

    advice("config-invalid", "Correct all listed problems.")
    machine.configure({"node.maxPods": 50, "node.labels": {"a": "b"}})
    assert machine.flex(*VALIDATE).code == 0


@pytest.mark.parametrize(
    ("values", "quote", "corrected"),
    [
        pytest.param(
            IDENTITY,
            "Set `azure.targetCluster.resourceId`.",
            CLUSTER | IDENTITY,
            marks=pytest.mark.remedy("cluster-id-missing"),
            id="cluster-id-missing",
        ),
        pytest.param(
            CLUSTER,
            "Or set `azure.servicePrincipal`, `azure.managedIdentity`",
            CLUSTER | IDENTITY,
            marks=pytest.mark.remedy("azure-identity-missing"),
            id="azure-identity-missing",
        ),
        pytest.param(
            CLUSTER,
            "set `continuousMonitoring: false`",
            {"continuousMonitoring": False},
            marks=pytest.mark.remedy("azure-identity-missing"),
            id="azure-identity-missing without the daemon",
        ),
        pytest.param(
            CLUSTER | {"azure.servicePrincipal": {"tenantId": "t", "clientId": "c"}},
            "set it in the configuration",
            CLUSTER | {"azure.servicePrincipal": {"tenantId": "t", "clientId": "c", "clientSecret": "s"}},
            marks=pytest.mark.remedy("azure-identity-incomplete"),
            id="azure-identity-incomplete",
        ),
        pytest.param(
            CLUSTER | IDENTITY | {"azure.cloud": "Ours"},
            "Set `azure.cloud` to one of these.",
            CLUSTER | IDENTITY | {"azure.cloud": "AzureChinaCloud"},
            marks=pytest.mark.remedy("cloud-unknown"),
            id="cloud-unknown",
        ),
        pytest.param(
            CLUSTER | IDENTITY | {"azure.cloud": "Ours"},
            "For a private cloud, set `azure.resourceManager` and `azure.authorityHost`.",
            CLUSTER
            | IDENTITY
            | {"azure.cloud": "Ours", "azure.resourceManager": CLOSED, "azure.authorityHost": CLOSED},
            marks=pytest.mark.remedy("cloud-unknown"),
            id="cloud-unknown of a private cloud",
        ),
    ],
)
def test_managed_node_gets_its_missing_setting(
    machine: Sandbox,
    request: pytest.FixtureRequest,
    values: dict[str, object],
    quote: str,
    corrected: dict[str, object],
) -> None:
    [name] = next(request.node.iter_markers("remedy")).args
    if name in {"azure-identity-incomplete", "cloud-unknown"}:
        machine.write(CERTIFICATE, client_pem())  # before the first join, the validation reports it
    machine.configure(MANAGED | values)
    assert machine.flex("agent", "--no-input").error == name

    advice(name, quote)
    machine.configure(MANAGED | corrected)
    assert machine.flex("agent", "--no-input").error == "preflight-failed"
