"""Follows the remedies of wrong command lines."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.remedies.catalogue import advice, command

if TYPE_CHECKING:
    from tests.remedies.agent.sandbox import Sandbox

CREDENTIALS = ("bootstrap", "--only", "credentials", "--skip", "all")


@pytest.mark.remedy("component-unknown")
def test_listed_component_is_accepted(machine: Sandbox) -> None:
    machine.configure()
    refused = machine.flex("plan", "--only", "kubelt")
    assert refused.error == "component-unknown"

    advice("component-unknown", "Use one of the names that the message lists.")
    [listed] = re.findall(r"Use one of: (.*)\.", refused.err)
    assert machine.flex("plan", "--only", listed.split(", ")[-1]).code == 0


@pytest.mark.remedy("check-unknown")
def test_suggested_check_can_be_skipped(machine: Sandbox) -> None:
    machine.configure({"node.kubelet.serverURL": "https://127.0.0.1:1"})
    refused = machine.flex("preflight", "--skip", "api-serve")
    assert refused.error == "check-unknown"

    advice("check-unknown", "Use the name that the message suggests")
    [suggested] = re.findall(r"Did you mean (\S+)\?", refused.err)
    without = machine.flex("preflight", "--skip", suggested, "--json")
    assert without.error == ""
    assert f'"{suggested}"' not in without.out
    assert machine.flex("preflight", *command("check-unknown", "--skip all")).code == 0


@pytest.mark.remedy("options-conflict")
def test_one_of_two_conflicting_options_is_accepted(machine: Sandbox) -> None:
    machine.configure()
    assert machine.flex("plan", "--only", "runc", "--from", "runc").error == "options-conflict"

    advice("options-conflict", "Use only one of the two options.")
    for option in ("--only", "--from"):
        assert machine.flex("plan", option, "tools").code == 0


@pytest.mark.remedy("set-option-invalid")
def test_setting_with_a_value_is_accepted(machine: Sandbox) -> None:
    machine.configure()
    assert machine.flex("config", "validate", "--set", "node.maxPods").error == "set-option-invalid"

    assert machine.flex("config", "validate", *command("set-option-invalid", "--set")).code == 0
    template = machine.types(command("set-option-invalid", "aks-flex-node config init", FILE="/etc/mine.yaml"))
    assert template.code == 0
    assert "maxPods" in machine.sh("cat /etc/mine.yaml; rm /etc/mine.yaml")


@pytest.mark.remedy("file-exists")
def test_configuration_is_created_at_another_path_or_after_a_move(machine: Sandbox) -> None:
    create = ("config", "init", "/etc/aks-flex-node/config.yaml")
    assert machine.flex(*create).code == 0
    assert machine.flex(*create).error == "file-exists"

    advice("file-exists", "Pass another file name, or move the existing file.")
    assert machine.flex("config", "init", "/etc/aks-flex-node/other.yaml").code == 0
    machine.sh("mv /etc/aks-flex-node/config.yaml /etc/aks-flex-node/old.yaml")
    assert machine.flex(*create).code == 0


@pytest.mark.remedy("file-not-writable")
def test_configuration_is_created_in_a_writable_directory(machine: Sandbox) -> None:
    create = ("config", "init", "/etc/aks-flex-node/sites/north/config.yaml")
    assert machine.flex(*create).error == "file-not-writable"
    advice("file-not-writable", "Create the directory first")
    machine.sh("mkdir -p /etc/aks-flex-node/sites/north")
    assert machine.flex(*create, user="nobody").error == "file-not-writable"
    advice("file-not-writable", "run the command with `sudo`, or pass another path")
    assert machine.flex("config", "init", "/tmp/aks-flex-node-of-nobody.yaml", user="nobody").code == 0  # noqa: S108
    machine.sh("rm /tmp/aks-flex-node-of-nobody.yaml")
    assert machine.flex(*create).code == 0


@pytest.mark.remedy("shell-unsupported")
def test_bash_completes_commands_in_a_new_shell(machine: Sandbox) -> None:
    assert machine.flex("completion", "tcsh").error == "shell-unsupported"

    *words, redirect = command("shell-unsupported", "aks-flex-node completion bash")
    assert redirect.startswith(">/etc/bash_completion.d/")
    machine.write(redirect[1:], machine.types(words).out)
    assert "aks-flex-node" in machine.sh(f"bash -c '. {redirect[1:]}; complete -p aks-flex-node'; rm {redirect[1:]}")


@pytest.mark.remedy("confirmation-required")
def test_removal_in_a_script_is_confirmed_with_an_option(machine: Sandbox) -> None:
    machine.configure()
    assert machine.flex(*CREDENTIALS).code == 0
    assert machine.flex("unbootstrap").error == "confirmation-required"

    shown = machine.flex("unbootstrap", *command("confirmation-required", "--dry-run"))
    assert "remove /etc/kubernetes/certs/ca.crt" in shown.out
    assert machine.sh("ls /etc/kubernetes/certs/ca.crt")
    assert machine.flex("unbootstrap", *command("confirmation-required", "--yes")).code == 0
    assert machine.sh("ls /etc/kubernetes/certs 2>/dev/null || true") == ""


@pytest.mark.remedy("root-required")
def test_command_that_requires_root_is_run_by_root(machine: Sandbox) -> None:
    machine.configure()
    words = ("plan", "--only", "credentials", "--config", "/etc/aks-flex-node/config.json")
    assert machine.flex(*words, user="nobody").error == "root-required"

    advice("root-required", "Run the command again with `sudo`.")
    assert machine.flex(*words).code == 0


@pytest.mark.remedy("error-name-unknown")
def test_listed_error_name_is_explained(machine: Sandbox) -> None:
    assert machine.flex("explain", "disk-is-full").error == "error-name-unknown"

    [listing] = command("error-name-unknown", "explain")
    listed = machine.flex(listing)
    assert listed.code == 0
    [name] = re.findall(r"^ +(disk-full)\b", listed.out, re.MULTILINE)
    assert machine.flex("explain", name).code == 0


@pytest.mark.remedy("job-unknown")
def test_listed_job_is_accepted(machine: Sandbox) -> None:
    refused = machine.flex("job", "upgrade")
    assert refused.error == "job-unknown"

    advice("job-unknown", "Use one of the job names that the message lists.")
    [listed] = re.findall(r"Use one of: (.*)\.", refused.err)
    assert machine.flex("job", listed.split(", ")[0]).error == "node-not-managed"


@pytest.mark.remedy("status-not-published")
def test_status_is_published_again_by_root(machine: Sandbox) -> None:
    machine.configure()
    assert machine.flex(*CREDENTIALS).code == 0
    machine.sh("rm -r /run/aks-flex-node")  # as a reboot does
    assert machine.flex("status", user="nobody").error == "status-not-published"

    assert machine.types(command("status-not-published", "sudo aks-flex-node status")).code == 0
    assert machine.flex("status", user="nobody").code == 0
