"""Follows the remedies of configuration files."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

from aks_flex_node.agent.policy import POLICY_FILE
from tests.client_certificates import client_pem
from tests.remedies.agent.sandbox import CONFIG
from tests.remedies.catalogue import advice, command
from tests.unit.agent.builders import JOIN
from tests.unit.agent.config.builders import TOKEN, settings

if TYPE_CHECKING:
    from tests.remedies.agent.sandbox import Sandbox

VALIDATE = ("config", "validate")


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


@pytest.mark.parametrize(
    ("content", "mode", "problem"),
    [
        ("forbid: [", "0600", "is not a mapping in valid YAML"),
        ("forbid: [everything]", "0600", "forbids what is unknown: 'everything'"),
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


def test_plan_and_bootstrap_need_a_complete_configuration(machine: Sandbox) -> None:
    """Otherwise they would write an empty CA certificate, also on a machine that is a node."""
    machine.configure({"kubernetes.version": "", "node.kubelet.caCertData": ""})
    assert machine.flex("plan").err == machine.flex(*VALIDATE).err
    kept = {path: value for path, value in JOIN.items() if path in {"node.kubelet.serverURL", "kubernetes.version"}}
    machine.write(CONFIG, settings(kept))
    machine.write("/var/lib/kubelet/pki/kubelet-client-current.pem", client_pem())  # it has joined
    for words in ("plan",), ("bootstrap", "--skip-phase", "preflight"):
        refused = machine.flex(*words)
        assert refused.error == "config-invalid"
        assert "node.kubelet.caCertData" in refused.err
        assert "bootstrapToken" not in refused.err


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


def test_one_of_two_conflicting_options_is_accepted(machine: Sandbox) -> None:
    machine.configure()
    assert machine.flex("plan", "--only", "runc", "--from", "runc").error == "options-conflict"
    for option in ("--only", "--from"):
        assert machine.flex("plan", option, "tools").code == 0
