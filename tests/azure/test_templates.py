"""End-to-end tests of the examples: templates deployed with az, and machines that join at first boot."""

from __future__ import annotations

import shlex
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from aks_flex_lab import network, node_agent
from aks_flex_lab.components.resource_provider import CLUSTER_ID, OWNER_ROLE_ID, RESOURCE_GROUP_ID, resolv_conf
from aks_flex_lab.supervisor import RESOLV_CONF_WRAPPER
from aks_flex_node.agent.paths import PUBLIC_STATUS
from tests.azure_cli import Az, program
from tests.providers import Provider
from tests.wait import until_named

if TYPE_CHECKING:
    from collections.abc import Callable

    from aks_flex_lab.lab import Lab
    from aks_flex_lab.machines.machine import EdgeMachine

TEMPLATES = Path(__file__).parents[2] / "templates"
DEPLOYMENTS = f"{network.MANAGEMENT_URL}{RESOURCE_GROUP_ID}/providers/Microsoft.Resources/deployments"


@pytest.fixture
def az(lab: Lab, tmp_path: Path) -> Az:
    """Returns an owner's az in the lab's cloud network, where its names resolve."""
    inside = lab.network.cloud.command(*RESOLV_CONF_WRAPPER, resolv_conf(lab.layout), program())
    script = tmp_path / "az"
    script.write_text(f'#!/bin/sh\nexec {shlex.join(inside)} "$@"\n')
    script.chmod(0o700)
    az = Az(script, tmp_path / "azure", str(lab.authority.certificate))
    az("cloud", "register", "--name", "Lab", "--endpoint-resource-manager", network.MANAGEMENT_URL)
    az("cloud", "set", "--name", "Lab")
    principal = lab.azure.directory.service_principal("operator", "secret-of-the-operator")
    lab.azure.assignments.put(RESOURCE_GROUP_ID, OWNER_ROLE_ID, principal.object_id)
    az.sign_in(principal)
    return az


def deploy(az: Az, node: str, *parameters: str) -> None:
    template = ("--template-file", str(TEMPLATES / "arm" / "flex-node.json"))
    given = (f"clusterName={CLUSTER_ID.rpartition('/')[2]}", f"nodeName={node}", *parameters)
    where = ("--resource-group", RESOURCE_GROUP_ID.rpartition("/")[2], "--name", node)
    az("deployment", "group", "create", *where, *template, "--parameters", *given)


def prepare(machine: EdgeMachine) -> None:
    """Installs the agent, after the machine's network is up."""
    until_named(machine, network.PROVIDER_NAME)
    node_agent.install(machine)


def first_boot(machine: EdgeMachine, example: str, filled_in: dict[str, str]) -> None:
    """Does what cloud-init does with an example: writes the files, then runs the commands."""
    text = (TEMPLATES / "cloud-init" / f"{example}.yaml").read_text()
    for placeholder, value in filled_in.items():
        assert placeholder in text
        text = text.replace(placeholder, value)
    document: dict[str, Any] = yaml.safe_load(text)
    for file in document["write_files"]:
        place = shlex.quote(file["path"])
        machine.run("install", "-d", "-m", "0755", str(Path(file["path"]).parent))
        machine.run(
            "sh", "-c", f"umask 077; cat >{place} && chmod {file['permissions']} {place}", input=file["content"]
        )
    for command in document["runcmd"]:
        machine.run(*command, timeout=600)


def is_ready(lab: Lab, name: str) -> bool:
    node = lab.cluster.get("node", name)
    conditions = node["status"]["conditions"] if node else ()
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def test_machines_join_at_first_boot_by_config_url_and_by_identity(
    lab: Lab, az: Az, add_machine: Callable[..., EdgeMachine]
) -> None:
    by_url, by_identity = add_machine("boot-url"), add_machine("boot-vm")
    for machine in (by_url, by_identity):
        prepare(machine)
    identity = lab.azure.directory.managed_identity("boot-vm", "/subscriptions/lab/identities/boot-vm")
    lab.azure.metadata.assign_identities(by_identity, identity)
    who = ("azureAuthMethod=managedIdentity", f"clientId={identity.client_id}", "kubernetesAuthMethod=certificate")
    try:
        deploy(az, by_url.name, "issueConfigUrls=true", 'labels={"site":"north"}')
        deploy(az, by_identity.name, *who)
        secret = f"{DEPLOYMENTS}/{by_url.name}/listOutputsWithSecureValues?api-version=2025-04-01"
        outputs = az("rest", "--method", "post", "--url", secret, "--resource", network.MANAGEMENT_URL)
        node = "/subscriptions/SUBSCRIPTION/resourceGroups/edge/providers/Microsoft.ContainerService"
        own = {
            f"{node}/managedClusters/plant/flexNodeConfig/edge-1": f"{CLUSTER_ID}/flexNodeConfig/{by_identity.name}",
            "https://management.azure.com": network.MANAGEMENT_URL,
        }
        url = {"https://rp.example:8443/configs/SECRET#ca=sha256:DIGEST": outputs["configUrl"]}
        with ThreadPoolExecutor(2) as pool:
            boots = [
                pool.submit(first_boot, by_url, "join-by-url", url),
                pool.submit(first_boot, by_identity, "join-by-identity", own),
            ]
            for boot in boots:
                boot.result()
        for machine in (by_url, by_identity):
            assert is_ready(lab, machine.name)  # the agent exits when the node is ready
            left = machine.run("find", "/run/aks-flex-node", "-type", "f").out.split()
            assert left == [PUBLIC_STATUS], "the config URL is gone"
        labels = lab.cluster.get("node", by_url.name)["metadata"]["labels"]
        assert labels["site"] == "north"
    finally:
        for machine in (by_url, by_identity):
            Provider(lab).delete(machine.name)
